"""The keys that a cluster's API server signs tokens with, as any service account may read them."""

import json
import os
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ACCOUNT_FOLDER_VARIABLE = "FROSTLINE_SERVICE_ACCOUNT"
"""Names another folder of token, ca.crt and namespace than the one that a kubelet mounts by itself."""
SECONDS = 5.0


def account_folder() -> Path:
    return Path(os.environ.get(ACCOUNT_FOLDER_VARIABLE) or ACCOUNT_FOLDER)


def fetch_keys() -> Mapping[str, Any]:
    """The JWKS of the API server of this pod's cluster. Raises OSError where it does not answer."""
    folder = account_folder()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = (folder / "token").read_text(encoding="utf-8").strip()
    request = urllib.request.Request(f"https://{host}:{port}/openid/v1/jwks", headers={"Authorization": f"Bearer {token}"})
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with urllib.request.urlopen(request, timeout=SECONDS, context=trust) as answer:
        try:
            return dict(json.load(answer))
        except ValueError as error:
            raise OSError(f"the API server's keys are no JSON: {error}") from error

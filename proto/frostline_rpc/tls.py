"""TLS of gRPC calls. FROSTLINE_TLS_DIR names a folder with tls.crt, tls.key and ca.crt; without the variable there is no TLS.

All servers have the same name in their certificate, whatever their address, since pods reach Services by address. Callers are
authenticated by tokens (`auth`) and not by certificates. A renewed certificate takes effect when a process restarts.
"""

import os
from pathlib import Path

import grpc

FOLDER_VARIABLE = "FROSTLINE_TLS_DIR"
SERVER_NAME = "frostline"
"""Subject alternative name that the certificate must have."""


def server_credentials() -> grpc.ServerCredentials | None:
    """The server's certificate and key; None: no TLS. Raises OSError where a file cannot be read."""
    folder = _folder()
    if folder is None:
        return None
    return grpc.ssl_server_credentials([((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())])


def channel_credentials() -> grpc.ChannelCredentials | None:
    """The certificate authority that clients trust; None: no TLS. Raises OSError where ca.crt cannot be read."""
    folder = _folder()
    return None if folder is None else grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())


def _folder() -> Path | None:
    given = os.environ.get(FOLDER_VARIABLE, "")
    return Path(given) if given else None

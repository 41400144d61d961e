"""The common interface of the tests' own cluster and a given one: an administrator, namespaces, tokens of service accounts."""

import secrets

from tests.cluster.api import Refused, Rest
from tests.cluster.waiting import wait_for


class WithNamespaces:
    """A cluster with namespaces. rest: as the administrator."""

    rest: Rest

    def new_namespace(self) -> str:
        """Make a namespace, and wait for its default service account and certificate."""
        name = f"t-{secrets.token_hex(4)}"
        self.rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}"
        wait_for(lambda: self.rest.get(f"{path}/serviceaccounts/default"), f"default service account of {name}")
        wait_for(lambda: self.rest.get(f"{path}/configmaps/kube-root-ca.crt"), f"kube-root-ca.crt of {name}")
        return name

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace, without waiting for the end of its pods."""
        try:
            self.rest.delete(f"/api/v1/namespaces/{name}")
        except Refused as error:
            if error.status not in (404, 409):
                raise

    def account_token(self, namespace: str, account: str, audience: str = "", seconds: int = 3600) -> str:
        """Return a token of a service account, bound to no pod."""
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.rest.create(path, body)["status"]["token"]

"""The cluster of a given kubeconfig, for the tests that need only an API server."""

from kubernetes import client, config

from tests.cluster.api import Rest
from tests.cluster.namespaces import WithNamespaces


class GivenCluster(WithNamespaces):
    """A given cluster. path: of the kubeconfig file, whose user may make namespaces and Roles."""

    def __init__(self, path: str) -> None:
        configuration = client.Configuration()
        config.load_kube_config(config_file=path, client_configuration=configuration)
        token = (configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or "").removeprefix("Bearer ")
        certificate = (configuration.cert_file, configuration.key_file) if configuration.cert_file else None
        self.rest = Rest(configuration.host, token, configuration.ssl_ca_cert or "", certificate=certificate)

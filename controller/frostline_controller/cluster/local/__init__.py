"""The local cluster: a file in place of the API server, a thread in place of the kubelet, child processes in place of pods."""

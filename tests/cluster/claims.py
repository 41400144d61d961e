"""A small storage provisioner: each claim of the class `shared` gets a folder that pods of all nodes share.

The volumes are declared as NFS, which such a folder would be on a real cluster; the volume controller binds them.
"""

import shutil
from pathlib import Path

from tests.cluster.api import Follower, Json, Rest

STORAGE_CLASS = "shared"
LABEL = {"app.kubernetes.io/managed-by": "frostline-test-claims"}


class Provisioner:
    """The provisioner. folder: the parent of the claims' folders."""

    def __init__(self, rest: Rest, folder: Path) -> None:
        self._rest, self._folder = rest, folder
        self._followers = (
            Follower(rest, "/api/v1/persistentvolumeclaims", self._provide),
            Follower(rest, "/api/v1/persistentvolumes", self._clear),
        )

    def start(self) -> None:
        """Create the storage class and follow claims and volumes. Raises one of api.TROUBLE."""
        storage_class = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "frostline.test/shared",
            "volumeBindingMode": "Immediate",
            "reclaimPolicy": "Delete",
        }
        self._rest.create_missing("/apis/storage.k8s.io/v1/storageclasses", storage_class)
        for follower in self._followers:
            follower.start()

    def stop(self) -> None:
        for follower in self._followers:
            follower.stop()

    def _provide(self, claim: Json, gone: bool) -> None:
        spec, metadata = claim["spec"], claim["metadata"]
        if gone or spec.get("volumeName") or spec.get("storageClassName") != STORAGE_CLASS or metadata.get("deletionTimestamp"):
            return
        name = f"pvc-{metadata['uid']}"
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": LABEL},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Retain",  # deleted here: the volume controller has no deleter for NFS
                "claimRef": {**reference, **{key: metadata[key] for key in ("namespace", "name", "uid")}},
                "nfs": {"server": "127.0.0.1", "path": str(folder)},
            },
        }
        self._rest.create_missing("/api/v1/persistentvolumes", volume)

    def _clear(self, volume: Json, gone: bool) -> None:
        """Delete a volume whose claim is gone, with all its contents."""
        if volume["metadata"].get("labels") != LABEL:
            return
        if gone:
            shutil.rmtree(volume["spec"]["nfs"]["path"], ignore_errors=True)
        elif volume.get("status", {}).get("phase") == "Released" and not volume["metadata"].get("deletionTimestamp"):
            self._rest.delete(f"/api/v1/persistentvolumes/{volume['metadata']['name']}")

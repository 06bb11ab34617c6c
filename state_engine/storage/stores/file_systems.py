"""What kind of file system a local state root lies on; has no counterpart in Flink.

Guarantees: a root on a network file system is recognised before anything is written to it. The engine's
commits rest on ``flock`` and on renames that are atomic, and network file systems promise neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from state_engine.core.errors import RootError
from state_engine.storage.stores.files import is_local, local_path, normal_uri

NETWORK_TYPES = frozenset(
    {
        "9p",
        "afs",
        "afp",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
    }
    | {
        "moosefs",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "webdav",
    }
)
# A FUSE mount is as local as what stands behind it: only those known to be local are.
LOCAL_FUSE_TYPES = frozenset({"fuseblk", "fuse.ntfs", "fuse.ntfs-3g", "fuse.fuse-overlayfs", "fuse.mergerfs"})


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Where a file system is mounted, and its type, as the operating system names it."""

    path: Path
    type: str

    @property
    def is_network(self) -> bool:
        """Whether other machines may write it behind this one's locks."""
        kind = self.type.lower()
        return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind not in LOCAL_FUSE_TYPES)


def mounts() -> list[Mount]:
    partitions = psutil.disk_partitions(all=True)
    return [Mount(path=Path(part.mountpoint), type=part.fstype) for part in partitions]


def mount_of(path: Path, among: Sequence[Mount]) -> Mount | None:
    """The mount that holds a path, which need not exist: the deepest one above it; None when unknown.

    >>> table = [Mount(path=Path("/"), type="ext4"), Mount(path=Path("/mnt/x"), type="nfs4")]
    >>> mount_of(Path("/mnt/x/state"), table).is_network, mount_of(Path("/mnt/xy"), table).type
    (True, 'ext4')
    """
    holding = [mount for mount in among if path == mount.path or mount.path in path.parents]
    # Of two mounts at one place the later one is in force.
    return max(reversed(holding), key=lambda mount: len(mount.path.parts), default=None)


def refuse_network_root(root: str, *, among: Sequence[Mount] | None = None) -> None:
    """Refuses a local state root on a network file system; other locations pass."""
    uri = normal_uri(root)
    if not is_local(uri):
        return
    mount = mount_of(local_path(uri), mounts() if among is None else among)
    if mount is not None and mount.is_network:
        raise RootError(
            f"the state root {root} lies on {mount.path}, a network file system ({mount.type}), where file locks "
            f"do not protect commits: use a local disk, or an object store such as s3a://bucket/path"
        )

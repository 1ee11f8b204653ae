"""Lock: one process has the file, and the others can find it.

The lock is a `flock` on a file beside the database's real path, so it cannot go stale: the kernel drops it with the
process. What is written in it (device, inode, boot, address) is believed only while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from oncebox.errors import Locked, StoreError, Unwritable

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs"}


class LockInfo(msgspec.Struct, frozen=True):
    """What the holder of the lock wrote about itself. `held`: somebody holds it now."""

    address: str = ""
    boot: str = ""
    pid: int = 0
    device: int = 0
    inode: int = 0
    held: bool = False


def lock_path(database: Path) -> Path:
    """The lock beside the real file, so that every symbolic link to it leads to the same lock."""
    real = Path(os.path.realpath(database))
    return real.with_name(real.name + ".lock")


def read_lock(database: Path) -> LockInfo | None:
    """What the running server wrote; None when there has never been one."""
    try:
        fd = os.open(lock_path(database), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = _decode(os.read(fd, 4096))
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return msgspec.structs.replace(info, held=True)
        return msgspec.structs.replace(info, held=False)
    except IsADirectoryError:
        return None
    finally:
        os.close(fd)


def refuse_held(database: Path) -> None:
    """Raises Locked if another process has the file open."""
    info = read_lock(database)
    if info is not None and info.held:
        raise Locked(_held_by(Path(os.path.realpath(database)), info))


class Lock:
    """The right to open one database file, held until `release` or the end of the process."""

    def __init__(self, database: Path) -> None:
        self.database = Path(os.path.realpath(database))
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock or say who has it. Raises Locked, Unwritable, StoreError."""
        self._refuse_bad_places()
        path = lock_path(self.database)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unwritable(
                f"{path}: cannot be opened ({error.strerror}); it must be a file that this user may write, in a folder "
                "that this user may write (store.path)"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            info = _decode(os.read(fd, 4096))
            os.close(fd)
            raise Locked(_held_by(self.database, info)) from error
        self._fd = fd
        try:
            self._refuse_orphaned_log()
        except StoreError:
            self.release()
            raise
        self.announce("", "")

    def announce(self, address: str, boot: str) -> None:
        """Write where this process answers, for commands that look for it."""
        with contextlib.suppress(FileNotFoundError):
            stat = self.database.stat()
            info = LockInfo(address, boot, os.getpid(), stat.st_dev, stat.st_ino)
            self._write(msgspec.json.encode(info))
            return
        self._write(msgspec.json.encode(LockInfo(address, boot, os.getpid())))

    def release(self) -> None:
        """Give the file free. The lock file stays: removing it would let two processes lock different inodes."""
        if self._fd >= 0:
            self._write(b"")
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)

    def _refuse_bad_places(self) -> None:
        folder = self.database.parent
        if not folder.is_dir():
            raise Unwritable(f"{folder}: there is no such folder for the database; create it or change store.path")
        kind = _file_system(folder)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreError(
                f"{folder}: is on a network file system ({kind}), where file locks cannot be trusted; use a local disk"
            )
        with contextlib.suppress(FileNotFoundError):
            stat = self.database.stat()
            if not self.database.is_file():
                raise StoreError(f"{self.database}: is not a file; change store.path")
            if stat.st_nlink > 1:
                raise StoreError(
                    f"{self.database}: has {stat.st_nlink} hard links; a second name would have a lock of its own. "
                    "Remove the other names, or copy the file"
                )

    def _refuse_orphaned_log(self) -> None:
        """SQLite throws away the log of a database that it makes anew, and all that was acknowledged with it."""
        log = self.database.with_name(self.database.name + "-wal")
        if _size(log) and not _size(self.database):
            raise StoreError(
                f"{log}: holds events of a database that is missing or empty; put {self.database.name} back where it "
                "was, or move this log away to begin with a new database (store.path)"
            )


def _size(path: Path) -> int:
    """In bytes; none where there is no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _held_by(database: Path, info: LockInfo) -> str:
    where = f" at {info.address}" if info.address else ""
    return (
        f"{database}: another Oncebox (process {info.pid}{where}) has this file open; "
        "stop it first, or give this one a file of its own (store.path)"
    )


def _decode(text: bytes) -> LockInfo:
    try:
        return msgspec.json.decode(text, type=LockInfo)
    except msgspec.DecodeError:
        return LockInfo()


def _file_system(folder: Path) -> str:
    """The type of the mount a folder is on; empty where the system does not say."""
    best, kind = "", ""
    with contextlib.suppress(OSError), Path("/proc/self/mounts").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split(" ")
            point = fields[1].replace("\\040", " ")
            inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, fields[2]
    return kind

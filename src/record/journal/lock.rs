//! Who writes a journal: a lock that the kernel drops with its holder, however that ends.
//!
//! A lock of the open file description, since that kind alone can be asked about without being taken: a reader that
//! looks must not be in the way of the orch that is about to write.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, c_int, flock};

fn whole_file(kind: c_int) -> flock {
    flock { l_type: kind as i16, l_whence: SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the lock for as long as `file` is open. False if another has it.
pub(super) fn take(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file(F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        // A file system without locks (some network mounts). The lock guards against two orchs for one run, which ids
        // make unlikely already; a run that cannot be recorded at all would be worse.
        Err(Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether someone has the lock.
pub(super) fn is_held(file: &File) -> io::Result<bool> {
    let mut asked = whole_file(F_RDLCK);
    match fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked)) {
        Ok(_) => Ok(asked.l_type != F_UNLCK as i16),
        Err(Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

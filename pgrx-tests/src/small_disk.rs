//! A file system in memory that is full soon, for a part of a server's data directory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::directory::ServerDirectory;
use crate::process::hand_over;
use crate::volatile_disk::move_away;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Data,
    Wal,
}

pub struct SmallDisk {
    directory: ServerDirectory,
}

impl SmallDisk {
    /// Nothing where this process may not mount file systems.
    pub fn mount(megabytes: usize) -> Option<SmallDisk> {
        let directory = ServerDirectory::create("e2e");
        let size = CString::new(format!("size={megabytes}m,mode=700")).ok()?;
        let target = c_path(directory.path())?;
        // SAFETY: all of them are C strings, and the last is what tmpfs reads.
        let result = unsafe {
            libc::mount(
                c"tmpfs".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                size.as_ptr().cast(),
            )
        };
        (result == 0 && hand_over(directory.path()).is_ok()).then_some(SmallDisk { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Moves a part of a stopped server's data here.
    pub(crate) fn take(&self, data: &Path, part: Part) {
        let name = match part {
            Part::Data => "base",
            Part::Wal => "pg_wal",
        };
        let (from, to) = (data.join(name), self.path().join(name));
        move_away(&from, &to);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Some(target) = c_path(self.directory.path()) {
            // SAFETY: it is a C string. Detached, it goes with the last file that is open.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

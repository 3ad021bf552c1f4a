//! A file system in memory that is full soon, for a part of a server's data directory.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::directory::ServerDirectory;
use crate::process::{complete, hand_over};

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
        complete(Command::new("cp").arg("-a").arg(&from).arg(&to));
        fs::remove_dir_all(&from).expect("it is a directory of ours");
        symlink(&to, &from).expect("a link can be made");
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

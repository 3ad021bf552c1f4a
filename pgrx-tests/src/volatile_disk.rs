//! A disk that can lose its power: what no process has synced is gone, as on a machine without electricity.
//!
//! It is a file with an ext4 file system of its own. The file system is shut down without a flush, by the request
//! that file systems are tested with, and then mounted again: its journal is replayed, and data that were only in
//! memory are lost.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::directory::ServerDirectory;
use crate::process::{complete, hand_over};
use crate::wait;

/// `_IOR('X', 125, __u32)`, EXT4_IOC_SHUTDOWN of the kernel, and EXT4_GOING_FLAGS_NOLOGFLUSH.
const SHUTDOWN: libc::Ioctl = 0x8004_587d;
const WITHOUT_FLUSH: u32 = 2;

pub struct VolatileDisk {
    directory: ServerDirectory,
}

impl VolatileDisk {
    /// Returns `None` if this process cannot mount a file as a disk.
    pub fn mount(megabytes: u64) -> Option<VolatileDisk> {
        let disk = VolatileDisk {
            directory: ServerDirectory::create("e2e"),
        };
        let image = File::create(disk.image()).and_then(|file| file.set_len(megabytes << 20));
        image.expect("a file can be made");
        std::fs::create_dir(disk.path()).expect("a directory can be made");
        let mut format = Command::new("mkfs.ext4");
        let formatted = format.arg("-q").arg(disk.image()).status();
        let is_formatted = formatted.is_ok_and(|status| status.success());
        (is_formatted && disk.try_mount() && hand_over(&disk.path()).is_ok()).then_some(disk)
    }

    /// The root of its file system.
    pub fn path(&self) -> PathBuf {
        self.directory.join("disk")
    }

    /// Writes everything to the disk, as the kernel does now and then.
    pub fn sync(&self) {
        let root = self.root();
        // SAFETY: the descriptor is open.
        let result = unsafe { libc::syncfs(root.as_raw_fd()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Loses everything that has not been synced, and comes back. No process may have a file open.
    pub fn lose_power(&self) {
        let root = self.root();
        // SAFETY: the descriptor is open, and the request reads one number.
        let result = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &WITHOUT_FLUSH) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        drop(root);
        // A process that has just ended may still hold a file.
        wait::until_true("the disk to be free", || unmount(&self.path(), 0));
        assert!(self.try_mount(), "the disk cannot be mounted again");
    }

    fn image(&self) -> PathBuf {
        self.directory.join("image")
    }

    fn root(&self) -> File {
        File::open(self.path()).expect("the disk is mounted")
    }

    fn try_mount(&self) -> bool {
        let mut mount = Command::new("mount");
        mount
            .args(["-o", "loop"])
            .arg(self.image())
            .arg(self.path());
        mount.output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for VolatileDisk {
    fn drop(&mut self) {
        unmount(&self.path(), libc::MNT_DETACH);
    }
}

fn unmount(path: &Path, flags: i32) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no NUL");
    // SAFETY: it is a C string.
    unsafe { libc::umount2(path.as_ptr(), flags) == 0 }
}

/// Moves a directory of a stopped server elsewhere, and leaves a link.
pub(crate) fn move_away(from: &Path, to: &Path) {
    complete(Command::new("cp").arg("-a").arg(from).arg(to));
    std::fs::remove_dir_all(from).expect("it is a directory of ours");
    std::os::unix::fs::symlink(to, from).expect("a link can be made");
}

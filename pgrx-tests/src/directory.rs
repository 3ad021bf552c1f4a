//! The directory of a server's files while the test process lives.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{hand_over, unprivileged};

/// Tests make and remove some hundred thousand files. On ext4, which does not reuse an inode in the first seconds
/// after its removal, creating them took a quarter of the servers' CPU time. Tests kill processes and never the
/// machine, so that files in memory survive what files on disk survive.
const IN_MEMORY: [&str; 2] = ["e2e", "chaos"];
const MEMORY: &str = "/dev/shm";
/// The tests of one process take less than 1 GiB at a time.
const MIN_FREE_MEMORY: u64 = 4 << 30;

/// A directory of the server's user, removed with this value unless kept.
pub struct ServerDirectory {
    path: PathBuf,
    kept: bool,
}

impl ServerDirectory {
    /// Makes a new one in memory if the purpose allows it, else in `<target>/<purpose>`, after removing the leftovers
    /// of dead processes.
    pub fn create(purpose: &str) -> ServerDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!(
            "{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        // SAFETY: geteuid has no preconditions.
        let own_name = format!("webhook-{purpose}-{}", unsafe { libc::geteuid() });
        let mut candidates = vec![
            target_directory().join(purpose),
            // A clone in a private home is out of reach for the server's user.
            std::env::temp_dir().join(&own_name),
        ];
        if IN_MEMORY.contains(&purpose) && free_bytes(MEMORY) >= MIN_FREE_MEMORY {
            candidates.insert(0, Path::new(MEMORY).join(&own_name));
        }
        for parent in &candidates {
            let path = parent.join(&name);
            if create_for_server(parent, &path).is_ok() && server_can_write(&path) {
                remove_leftovers(parent);
                return ServerDirectory { path, kept: false };
            }
            let _ = fs::remove_dir(path);
        }
        panic!("the server's user can write in none of {candidates:?}");
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Renames it so that no later run takes it for a leftover, and says where it is.
    pub fn keep(&mut self) -> &Path {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let kept = self.path.with_file_name(format!("kept-{name}"));
        if fs::rename(&self.path, &kept).is_ok() {
            self.path = kept;
        }
        self.kept = true;
        &self.path
    }

    /// For a value that is never dropped.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Drop for ServerDirectory {
    fn drop(&mut self) {
        if !self.kept {
            self.remove();
        }
    }
}

/// The build's target directory: executables are in `<target>/<profile>` or its `deps`.
pub fn target_directory() -> PathBuf {
    let executable = std::env::current_exe().expect("the running executable has a path");
    executable
        .ancestors()
        .skip(1)
        .find(|directory| !directory.ends_with("deps"))
        .and_then(Path::parent)
        .expect("the executable is in a profile's directory")
        .to_path_buf()
}

/// Returns 0 if there is no such file system, or if it executes no programs: some servers run from a copy.
fn free_bytes(path: &str) -> u64 {
    let Ok(path) = CString::new(path) else {
        return 0;
    };
    // SAFETY: statvfs is a plain structure of numbers, and the path is a C string.
    let (result, found) = unsafe {
        let mut found: libc::statvfs = mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut found), found)
    };
    if result != 0 || found.f_flag & libc::ST_NOEXEC != 0 {
        return 0;
    }
    found.f_bavail * found.f_frsize
}

fn create_for_server(parent: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    hand_over(parent)?;
    hand_over(path)
}

fn server_can_write(path: &Path) -> bool {
    unprivileged("test")
        .arg("-w")
        .arg(path)
        .current_dir("/")
        .status()
        .is_ok_and(|status| status.success())
}

fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split_once('-').and_then(|(pid, _)| pid.parse().ok());
        if owner.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

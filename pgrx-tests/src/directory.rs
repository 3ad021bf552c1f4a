//! The directory of a server's files while the test process lives.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{hand_over, unprivileged};

/// A directory of the server's user, removed with this value unless kept.
pub struct ServerDirectory {
    path: PathBuf,
    kept: bool,
}

impl ServerDirectory {
    /// Makes a new one in `<target>/<purpose>`, after removing the leftovers of dead processes.
    pub fn create(purpose: &str) -> ServerDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!(
            "{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        // A clone in a private home is out of reach for the server's user.
        let candidates = [
            target_directory().join(purpose),
            // SAFETY: geteuid has no preconditions.
            std::env::temp_dir().join(format!("webhook-{purpose}-{}", unsafe { libc::geteuid() })),
        ];
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

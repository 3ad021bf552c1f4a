//! The data directory of initdb, made once and copied for every cluster: initdb takes a second, and there are 170
//! clusters.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::directory::ServerDirectory;
use crate::process::{complete, unprivileged};

/// A data directory that no server has run in.
pub struct Template {
    path: PathBuf,
}

impl Template {
    /// The directory that this initdb makes with these arguments, kept beside the directory of the cluster. Two
    /// processes may make it at the same time: each in a directory of its own, and the first to rename it has made it
    /// for both.
    pub fn of(directory: &ServerDirectory, initdb: &mut Command) -> Template {
        let parent = directory.path().parent().expect("it is in a directory");
        let path = parent.join(format!("template-{:016x}", fingerprint(initdb)));
        if !path.exists() {
            let made = directory.join("template");
            complete(initdb.arg("-D").arg(&made));
            if let Err(error) = fs::rename(&made, &path) {
                assert!(path.exists(), "could not make {}: {error}", path.display());
            }
        }
        Template { path }
    }

    pub fn copy_to(&self, data_directory: &Path) {
        let mut copy = unprivileged("cp");
        complete(copy.arg("-a").arg(&self.path).arg(data_directory));
    }
}

/// A fingerprint of the program, as it is now, and its arguments.
fn fingerprint(initdb: &Command) -> u64 {
    let program = Path::new(initdb.get_program());
    let server = program.with_file_name("postgres");
    let built_at = server.metadata().and_then(|file| file.modified());
    let arguments: Vec<_> = initdb.get_args().collect();
    let mut hasher = DefaultHasher::new();
    (program, built_at.expect("there is a server"), arguments).hash(&mut hasher);
    hasher.finish()
}

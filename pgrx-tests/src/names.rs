//! Host names of a server, which resolve to whatever they are told to, or hang. They end in `.invalid`, which nobody
//! owns.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::cluster::Builder;
use crate::directory::ServerDirectory;
use crate::{preload, wait};

const LIBRARY: &str = include_str!("names.c");

pub struct Names {
    library: PathBuf,
    directory: ServerDirectory,
}

impl Names {
    pub fn make() -> Names {
        let directory = ServerDirectory::create("e2e");
        let library = preload::compile(&directory, LIBRARY);
        Names { library, directory }
    }

    pub fn of(&self, builder: Builder) -> Builder {
        let directory = self.directory.path().to_string_lossy().into_owned();
        builder
            .variable("LD_PRELOAD", &self.library.to_string_lossy())
            .variable("WEBHOOK_NAMES", &directory)
    }

    /// Holds from its next lookup on, and for lookups that hang.
    pub fn resolve(&self, name: &str, address: &str) {
        assert!(name.ends_with(".invalid"), "{name} may be somebody's");
        let new = self.directory.join(&format!("{name}.new"));
        fs::write(&new, address).expect("an address can be written");
        let readable = fs::Permissions::from_mode(0o644);
        fs::set_permissions(&new, readable).expect("the file is ours");
        fs::rename(new, self.directory.join(name)).expect("a name can be given");
    }

    /// Waits until a lookup of the name hangs.
    #[track_caller]
    pub fn wait_for_lookup(&self, name: &str) {
        let asked = self.directory.join(&format!("{name}.asked"));
        wait::until_true(&format!("a lookup of {name}"), || asked.exists());
    }

    /// Lookups hang until `resolve()`.
    pub fn hang(&self, name: &str) {
        self.resolve(name, "");
    }
}

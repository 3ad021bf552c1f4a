//! The wall clock of a server, which can be set: a library that its processes preload.
//!
//! libfaketime does not do: a background worker that PostgreSQL 15 starts from a signal handler would have the true
//! time.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Builder;
use crate::directory::ServerDirectory;
use crate::preload;

const LIBRARY: &str = include_str!("clock.c");

pub struct Clock {
    library: PathBuf,
    directory: ServerDirectory,
}

impl Clock {
    pub fn make() -> Clock {
        let directory = ServerDirectory::create("e2e");
        let library = preload::compile(&directory, LIBRARY);
        let clock = Clock { library, directory };
        clock.set(0);
        let readable = fs::Permissions::from_mode(0o644);
        fs::set_permissions(clock.offset(), readable).expect("the file is ours");
        clock
    }

    pub fn of(&self, builder: Builder) -> Builder {
        builder
            .variable("LD_PRELOAD", &self.library.to_string_lossy())
            .variable("WEBHOOK_CLOCK", &self.offset().to_string_lossy())
    }

    pub fn of_command(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("WEBHOOK_CLOCK", self.offset());
    }

    /// So many seconds from the true time.
    pub fn set(&self, seconds: i64) {
        let microseconds = (seconds * 1_000_000).to_ne_bytes();
        // Never shorter than that: it is mapped.
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.offset());
        let written = file.and_then(|mut file| file.write_all(&microseconds));
        written.expect("the file can be written");
    }

    fn offset(&self) -> PathBuf {
        self.directory.join("offset")
    }
}

//! The standard error of a server.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

#[derive(Clone)]
pub struct ServerLog {
    path: PathBuf,
}

impl ServerLog {
    pub fn new(path: PathBuf) -> ServerLog {
        ServerLog { path }
    }

    pub fn open(&self) -> File {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path);
        file.unwrap_or_else(|error| panic!("could not open {}: {error}", self.path.display()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.path).unwrap_or_default()).into_owned()
    }

    pub fn last_lines(&self) -> String {
        let text = self.text();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(50)..].join("\n")
    }
}

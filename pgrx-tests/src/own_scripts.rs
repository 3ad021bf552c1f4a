//! A server with scripts of extensions that no other server sees. A server finds its files by the place of its
//! program, so that a copy of the program, with links to all other files, has a share directory of its own.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The files of an installation, as pg_config tells them.
pub struct Installation {
    pub programs: PathBuf,
    pub share: PathBuf,
}

impl Installation {
    /// Makes it in `root`, with these scripts beside the installed ones, by name; returns the server's program.
    pub fn with_scripts(&self, root: &Path, scripts: &[(String, String)]) -> io::Result<PathBuf> {
        let extensions = self.share.join("extension");
        let common = (self.programs.ancestors())
            .find(|directory| extensions.starts_with(directory))
            .expect("both have a root");
        mirror(common, root, &[&self.programs, &extensions])?;
        let moved = |path: &Path| root.join(path.strip_prefix(common).expect("it is the ancestor"));
        for (name, text) in scripts {
            fs::write(moved(&extensions).join(name), text)?;
        }
        let program = moved(&self.programs).join("postgres");
        fs::remove_file(&program)?;
        fs::copy(self.programs.join("postgres"), &program)?;
        Ok(program)
    }
}

/// Links to everything in a directory; the opened directories and the ones above them are directories of their own.
fn mirror(from: &Path, to: &Path, opened: &[&Path]) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if opened
            .iter()
            .any(|directory| directory.starts_with(&source))
        {
            mirror(&source, &copy, opened)?;
        } else {
            symlink(source, copy)?;
        }
    }
    Ok(())
}

//! Small libraries that the processes of a server preload, to meet a world that can be told what to be.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::directory::ServerDirectory;
use crate::process::complete;

/// Compiles it into this directory: a machine that builds Rust programs has a C compiler.
pub fn compile(directory: &ServerDirectory, source: &str) -> PathBuf {
    let (text, library) = (directory.join("preload.c"), directory.join("preload.so"));
    fs::write(&text, source).expect("the source can be written");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    complete(compile.arg(&library).arg(text).arg("-ldl"));
    library
}

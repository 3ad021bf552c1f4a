//! Puts the files of sql/ into the program, for `webhook-relay install`.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let sql = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../sql");
    println!("cargo::rerun-if-changed={}", sql.display());
    let mut out = String::new();
    for (name, folder, prefix) in [
        ("FILES", sql.clone(), ""),
        ("STAND_INS", sql.join("portable"), ""),
        ("MIGRATIONS", sql.join("migrations"), ""),
        ("RELEASES", sql.join("releases"), "portable--"),
    ] {
        writeln!(out, "pub const {name}: &[(&str, &str)] = &[").expect("a String takes it");
        for path in scripts(&folder, prefix)? {
            let name = path.file_name().unwrap_or_default();
            writeln!(out, "    ({name:?}, include_str!({path:?})),").expect("a String takes it");
        }
        out.push_str("];\n");
    }
    let file = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("sql.rs");
    fs::write(file, out)
}

fn scripts(folder: &Path, prefix: &str) -> io::Result<Vec<std::path::PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder)?.map(|entry| entry?.path().canonicalize());
    let mut paths = entries.collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix) && name.ends_with(".sql")
    });
    paths.sort();
    Ok(paths)
}

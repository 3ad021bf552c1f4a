//! The password file, as libpq reads it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::log;

/// The password of the first line that fits: `host:port:database:user:password`, where `*` fits everything.
pub fn password(path: &Path, wanted: [&str; 4]) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() {
        return None;
    }
    if metadata.mode() & 0o077 != 0 {
        let message = format!(
            "password file \"{}\" is not used: others may read it",
            path.display()
        );
        log::warn(&message, "chmod 600 makes it yours alone.");
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| password_in(line, wanted))
}

fn password_in(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line.chars();
    // A backslash takes away the meaning of the next character.
    let mut field = || {
        let mut field = String::new();
        let mut is_plain = false;
        while let Some(next) = rest.next() {
            match next {
                ':' => return Some((field, is_plain)),
                '\\' => {
                    field.extend(rest.next());
                    is_plain = true;
                }
                next => field.push(next),
            }
        }
        None
    };
    for wanted in wanted {
        let (field, is_plain) = field()?;
        if field != wanted && (field != "*" || is_plain) {
            return None;
        }
    }
    let mut password = String::new();
    while let Some(next) = rest.next() {
        match next {
            ':' => break,
            '\\' => password.extend(rest.next()),
            next => password.push(next),
        }
    }
    Some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [&str; 4] = ["db.example.com", "5432", "shop", "relay"];

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let of = |line| password_in(line, WANTED);
        assert_eq!(of("*:*:*:relay:secret").as_deref(), Some("secret"));
        assert_eq!(
            of("db.example.com:5432:shop:relay:a\\:b\\\\c").as_deref(),
            Some("a:b\\c")
        );
        assert_eq!(of("db.example.com:5433:shop:relay:secret"), None);
        assert_eq!(of("\\*:*:*:relay:secret"), None);
        assert_eq!(of("# *:*:*:*:secret"), None);
        assert_eq!(of("db.example.com:5432"), None);
    }
}

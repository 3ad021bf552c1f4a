//! The protocols of SQL that a program can work with. The SQL of a database says its protocol; it differs from the
//! program's where one of them was upgraded and the other was not yet.

use std::ops::RangeInclusive;

/// `webhook.protocol()` of the SQL that a sender can work with. A change of a call that senders make, of its
/// arguments or of its result, is another protocol.
const SPOKEN: RangeInclusive<i32> = 1..=1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Library,
    Relay,
}

pub fn is_spoken(of_sql: i32) -> bool {
    SPOKEN.contains(&of_sql)
}

/// The sentence for people where SQL of this protocol cannot be worked with.
pub fn problem(program: Program, of_sql: i32) -> Option<String> {
    let spoken = match (*SPOKEN.start(), *SPOKEN.end()) {
        (first, last) if first == last => format!("protocol {first}"),
        (first, last) => format!("protocols {first} to {last}"),
    };
    let name = match program {
        Program::Library => "the library",
        Program::Relay => "this relay",
    };
    let remedy = match program {
        _ if is_spoken(of_sql) => return None,
        _ if of_sql < *SPOKEN.start() => "ALTER EXTENSION webhook UPDATE brings the SQL up to date",
        Program::Library => "install the library of the same version and restart the server",
        Program::Relay => "install webhook-relay of the same version as the extension",
    };
    Some(format!(
        "{name} speaks {spoken}, and the SQL of this database protocol {of_sql}; {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_that_is_ahead_or_behind_says_what_helps() {
        let (oldest, newest) = (*SPOKEN.start(), *SPOKEN.end());
        for spoken in SPOKEN {
            assert_eq!(problem(Program::Library, spoken), None);
            assert_eq!(problem(Program::Relay, spoken), None);
        }
        for (program, of_sql, remedy) in [
            (Program::Library, oldest - 1, "ALTER EXTENSION"),
            (Program::Relay, oldest - 1, "ALTER EXTENSION"),
            (Program::Library, newest + 1, "restart the server"),
            (Program::Relay, newest + 1, "install webhook-relay"),
        ] {
            let told = problem(program, of_sql).expect("it cannot be worked with");
            assert!(told.contains(remedy), "{told}");
            assert!(told.contains(&format!("protocol {of_sql};")), "{told}");
        }
    }
}

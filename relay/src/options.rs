//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use webhook_delivery::{Network, RequireHttps};

use crate::http::Serving;
use crate::portable::{Action, Order};
use crate::target::Target;
use crate::token::{self, Token};

const HELP: &str = "\
webhook-relay delivers the webhooks of a PostgreSQL database that has the
extension webhook, from any machine that reaches the database. The role that
it logs in as needs the level relay: SELECT webhook_grant('ROLE', 'relay').
With webhook.max_in_flight = 0 in postgresql.conf the server leaves delivery
to relays; of several relays each serves its share of the endpoints
(webhook.senders), and the others stand by.

Usage:
  webhook-relay run [OPTION]... [CONNECTION]
  webhook-relay metrics [CONNECTION]
  webhook-relay page [CONNECTION]
  webhook-relay install [--owner ROLE] [CONNECTION]
  webhook-relay upgrade [CONNECTION]
  webhook-relay uninstall [--force] [CONNECTION]

metrics prints the figures of the database for Prometheus, and page a page of
HTML for people, made for a file: webhook-relay page > webhook.html. Their
role needs the level read: SELECT webhook_grant('ROLE', 'read').

A database that allows no library, and has no superuser, gets the schema of
the extension by install, which a role executes that owns the database;
docs/portable.md says what is different there. The schema belongs to ROLE
(default webhook_owner), a role that nobody works as. install makes the role
if it may; else it changes nothing and prints the statements for somebody
who may. upgrade makes it that of this program, and can be repeated.
uninstall removes all of it; with --force also where deliveries wait, tables
are watched, or other objects depend on it, which are dropped then. Both
refuse a schema with objects that are not ours, and execute nothing of it.

CONNECTION is a URI or a string of keywords, as psql takes it:
  postgresql://relay@db.example.com/shop?sslmode=verify-full
  'host=db.example.com dbname=shop user=relay'
The variables PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD, PGPASSFILE,
PGSSLMODE, PGSSLROOTCERT, PGCONNECT_TIMEOUT, PGAPPNAME and PGOPTIONS fill in
what it leaves out. Keep the password in ~/.pgpass or in PGPASSWORD: other
users of this machine see command lines. Of several hosts, the relay takes
the first that accepts writes.

sslmode is disable, prefer (default), require, verify-ca or verify-full;
sslrootcert is a file of certificate authorities in PEM format (default
~/.postgresql/root.crt), or 'system' for those of this machine.

Options:
  --max-in-flight NUMBER   requests at the same time (default 1000)
  --grace SECONDS          time that requests in flight get to end by
                           themselves after SIGTERM (default 10)
  --http ADDRESS:PORT      answer GET /healthz there: 200 while it delivers,
                           else 503; and GET /metrics for Prometheus, if the
                           role has the level read too
  --page                   also serve the page, at / of --http
  --token-file FILE        give metrics, page and the reason of a 503 only to
                           clients that send the token that the file has (or
                           WEBHOOK_RELAY_TOKEN): as Bearer, or as the password
                           of any user; beyond loopback no client gets them
                           without
  --log-format FORMAT      lines (default) or json

Where the relay may connect to. The database has rules of its own
(webhook.allow_networks, webhook.tenant_networks for endpoints of tenants,
and so on); a request is sent if both allow it:
  --allow-networks LIST    private and other special networks that endpoints
                           may be in, such as 10.0.0.0/8 (default: none)
  --deny-networks LIST     networks that no endpoint may be in
  --allow-ports LIST       ports of endpoints (default 80, 443, 1024-65535)
  --require-https WHERE    on, off, or public: outside of --allow-networks
                           (default)
  --ca-file FILE           certificate authorities, in PEM format, that are
                           trusted beside those of this machine

  --help                   this text
  --version                the version

Signals: SIGTERM or SIGINT takes nothing new, waits for requests in flight,
settles them and ends with status 0; a second one ends at once. Under
systemd it works with Type=notify.
";

pub enum Command {
    Tell(String),
    Administer(Box<Order>),
    Look(Look, Box<Target>),
    Run(Box<Options>),
}

pub enum Look {
    Metrics,
    Page,
}

pub struct Options {
    pub target: Target,
    pub max_in_flight: usize,
    pub grace: Duration,
    pub http: Option<Serving>,
    pub logs_json: bool,
    pub network: Network,
    pub ca_file: Option<PathBuf>,
}

/// The first argument is the program's own name. An error never repeats a value that may have a password in it.
pub fn read(arguments: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut arguments = arguments.skip(1).map(|argument| {
        (argument.into_string()).map_err(|_| "an argument is not valid UTF-8".to_owned())
    });
    match arguments.next().transpose()?.as_deref() {
        Some("run") => {}
        Some("metrics") => return look(Look::Metrics, arguments),
        Some("page") => return look(Look::Page, arguments),
        Some("install") => return administration(Action::Install, arguments),
        Some("upgrade") => return administration(Action::Upgrade, arguments),
        Some("uninstall") => return administration(Action::Uninstall, arguments),
        Some("--help" | "-h" | "help") => return Ok(Command::Tell(HELP.trim_end().to_owned())),
        Some("--version" | "-V") => {
            return Ok(Command::Tell(
                concat!("webhook-relay ", env!("CARGO_PKG_VERSION")).into(),
            ));
        }
        Some(_) => return Err("there is no such command; try \"webhook-relay --help\"".into()),
        None => return Err("a command is missing; try \"webhook-relay --help\"".into()),
    }

    let mut connection = None;
    let mut max_in_flight = 1000;
    let mut grace = Duration::from_secs(10);
    let mut http = None;
    let mut page = false;
    let mut token_file = None;
    let mut logs_json = false;
    let mut network = Network::default();
    let mut ca_file = None;
    while let Some(argument) = arguments.next().transpose()? {
        if matches!(argument.as_str(), "--help" | "-h") {
            return Ok(Command::Tell(HELP.trim_end().to_owned()));
        }
        let Some(option) = argument.strip_prefix("--") else {
            if connection.replace(argument).is_some() {
                return Err("there is more than one connection string".into());
            }
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (option.to_owned(), None),
        };
        let mut value = || match value.clone() {
            Some(value) => Ok(value),
            None => (arguments.next().transpose()?).ok_or(format!("--{name} needs a value")),
        };
        match name.as_str() {
            "max-in-flight" => max_in_flight = number(&name, &value()?)?.max(1),
            "grace" => grace = Duration::from_secs(number(&name, &value()?)? as u64),
            "http" => http = Some(address(&value()?)?),
            "page" if option == "page" => page = true,
            "token-file" => token_file = Some(PathBuf::from(value()?)),
            "log-format" => logs_json = is_json(&value()?)?,
            "allow-networks" => {
                network.allow = list(&name, &value()?)?;
                network.allow_tenants = network.allow.clone();
            }
            "deny-networks" => network.deny = list(&name, &value()?)?,
            "allow-ports" => network.ports = list(&name, &value()?)?,
            "require-https" => network.require_https = require_https(&value()?)?,
            "ca-file" => ca_file = Some(PathBuf::from(value()?)),
            _ => return Err("there is no such option; try \"webhook-relay --help\"".into()),
        }
    }
    let connection = connection.unwrap_or_default();
    Ok(Command::Run(Box::new(Options {
        target: Target::read(&connection, &|name| std::env::var(name).ok())?,
        max_in_flight,
        grace,
        http: serving(http, page, token_file)?,
        logs_json,
        network,
        ca_file,
    })))
}

fn look(
    look: Look,
    mut arguments: impl Iterator<Item = Result<String, String>>,
) -> Result<Command, String> {
    let mut connection = None;
    while let Some(argument) = arguments.next().transpose()? {
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Tell(HELP.trim_end().to_owned())),
            _ if argument.starts_with("--") => {
                return Err("there is no such option; try \"webhook-relay --help\"".into());
            }
            _ => {
                if connection.replace(argument).is_some() {
                    return Err("there is more than one connection string".into());
                }
            }
        }
    }
    let connection = connection.unwrap_or_default();
    let target = Target::read(&connection, &|name| std::env::var(name).ok())?;
    Ok(Command::Look(look, Box::new(target)))
}

fn serving(
    http: Option<SocketAddr>,
    page: bool,
    token_file: Option<PathBuf>,
) -> Result<Option<Serving>, String> {
    let Some(address) = http else {
        return match (page, token_file) {
            (true, _) => Err("--page needs --http ADDRESS:PORT".into()),
            (_, Some(_)) => Err("--token-file needs --http ADDRESS:PORT".into()),
            _ => Ok(None),
        };
    };
    let token = match (token_file, std::env::var(token::VARIABLE)) {
        (Some(path), _) => Some(Token::of_file(&path)?),
        (None, Ok(text)) if !text.is_empty() => {
            let wrong = |problem| format!("{}: {problem}", token::VARIABLE);
            Some(Token::new(&text).map_err(wrong)?)
        }
        _ => None,
    };
    let serving = Serving {
        address,
        page,
        token,
    };
    match serving.problem() {
        Some(problem) => Err(problem.into()),
        None => Ok(Some(serving)),
    }
}

fn administration(
    action: Action,
    mut arguments: impl Iterator<Item = Result<String, String>>,
) -> Result<Command, String> {
    let mut connection = None;
    let mut owner = None;
    let mut force = false;
    while let Some(argument) = arguments.next().transpose()? {
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Tell(HELP.trim_end().to_owned())),
            "--force" if action == Action::Uninstall => force = true,
            "--owner" => {
                let named = arguments.next().transpose()?;
                owner = Some(named.ok_or("--owner needs the name of a role")?);
            }
            _ if argument.starts_with("--owner=") => {
                owner = Some(argument["--owner=".len()..].to_owned())
            }
            _ if argument.starts_with("--") => {
                return Err("there is no such option; try \"webhook-relay --help\"".into());
            }
            _ => {
                if connection.replace(argument).is_some() {
                    return Err("there is more than one connection string".into());
                }
            }
        }
    }
    if owner
        .as_ref()
        .is_some_and(|owner| owner.is_empty() || owner.len() > 63)
    {
        return Err("--owner needs the name of a role, of 1 to 63 bytes".into());
    }
    let connection = connection.unwrap_or_default();
    Ok(Command::Administer(Box::new(Order {
        action,
        target: Target::read(&connection, &|name| std::env::var(name).ok())?,
        owner,
        force,
    })))
}

fn number(name: &str, value: &str) -> Result<usize, String> {
    let number = value.parse::<u32>();
    let number = number.map_err(|_| format!("--{name} needs a whole number, not \"{value}\""))?;
    Ok(number as usize)
}

fn address(value: &str) -> Result<SocketAddr, String> {
    let wrong =
        format!("--http needs an address and a port such as 127.0.0.1:8080, not \"{value}\"");
    value.parse().map_err(|_| wrong)
}

fn is_json(value: &str) -> Result<bool, String> {
    match value {
        "lines" => Ok(false),
        "json" => Ok(true),
        _ => Err(format!("--log-format is lines or json, not \"{value}\"")),
    }
}

fn list<T: FromStr<Err = String>>(name: &str, value: &str) -> Result<T, String> {
    (value.parse()).map_err(|problem| format!("--{name}: {problem}"))
}

pub fn require_https(value: &str) -> Result<RequireHttps, String> {
    match value {
        "on" => Ok(RequireHttps::On),
        "public" => Ok(RequireHttps::Public),
        "off" => Ok(RequireHttps::Off),
        _ => Err(format!(
            "--require-https is on, public or off, not \"{value}\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(arguments: &[&str]) -> String {
        let arguments = ["webhook-relay"].iter().chain(arguments);
        match read(arguments.map(OsString::from)) {
            Err(problem) => problem,
            Ok(_) => panic!("it was accepted"),
        }
    }

    #[test]
    fn a_bad_option_gets_one_line_without_a_password() {
        for arguments in [
            &["run", "postgresql://relay:hunter2@db.example.com:port/shop"][..],
            &["run", "postgresql://relay:hun?ter2@db.example.com/shop"],
            &["run", "host=db password=hunter2 dbnam=shop"],
            &["run", "host=db password='hunter2"],
            &["run", "host=db", "password=hunter2"],
            &["run", "--password=hunter2"],
            &["postgresql://relay:hunter2@db.example.com/shop"],
            &["run", "--grace", "long"],
            &["run", "--grace"],
            &["run", "--allow-networks", "10.0.0.1/8"],
            &["install", "host=db password='hunter2"],
            &["install", "--owner"],
            &[
                "install",
                "--force",
                "postgresql://relay:hunter2@db.example.com/shop",
            ],
            &["uninstall", "--password=hunter2"],
            &["metrics", "host=db password='hunter2"],
            &["page", "--password=hunter2"],
            &["run", "--page"],
            &["run", "--http", "0.0.0.0:8080", "--page"],
            &["run", "--http", "[::]:8080", "--page"],
            &[
                "run",
                "--http",
                "127.0.0.1:8080",
                "--page",
                "--token-file",
                "/no/such/hunter3",
            ],
        ] {
            let problem = problem(arguments);
            assert!(!problem.contains('\n'), "{problem}");
            assert!(
                !problem.contains("hunter2") && !problem.contains("ter2"),
                "{problem}"
            );
        }
    }

    #[test]
    fn help_fits_a_terminal_and_names_every_option() {
        assert!(HELP.lines().all(|line| line.len() < 80));
        for option in [
            "max-in-flight",
            "grace",
            "http",
            "page",
            "token-file",
            "log-format",
            "allow-networks",
            "ca-file",
            "owner",
            "force",
        ] {
            assert!(HELP.contains(&format!("--{option}")));
        }
    }
}

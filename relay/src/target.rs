//! The database that the relay works for: a connection string as libpq takes it, its variables and its files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::passfile;
use crate::tls::{Check, Tls};

/// A server that is cut off is noticed after about this time, whether the relay has just sent something or waits.
const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// Each option, and the variable that fills it in.
const OPTIONS: [(&str, &str); 13] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("application_name", "PGAPPNAME"),
    ("options", "PGOPTIONS"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
];

#[derive(Clone)]
pub struct Target {
    pub config: Config,
    pub tls: Tls,
    /// Host, port and database, for the log.
    pub name: String,
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Target {
    /// Errors name no value: part of a password may have been taken for one.
    pub fn read(connection: &str, variable: Variable<'_>) -> Result<Target, String> {
        let mut options = match uri(connection) {
            Some(rest) => of_uri(rest)?,
            None => of_keywords(connection)?,
        };
        for (option, name) in OPTIONS {
            if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
                options.entry(option.to_owned()).or_insert(value);
            }
        }
        if options
            .keys()
            .any(|key| OPTIONS.iter().all(|(option, _)| option != key))
        {
            let known = OPTIONS.map(|(option, _)| option).join(", ");
            return Err(format!(
                "the connection string has an option that is not known; known are {known}"
            ));
        }
        let home = variable("HOME").map(PathBuf::from);
        configure(&options, home.as_deref())
    }
}

fn configure(options: &HashMap<String, String>, home: Option<&Path>) -> Result<Target, String> {
    let option = |name: &str| options.get(name).map(String::as_str);
    let list = |name| option(name).into_iter().flat_map(|list| list.split(','));
    let mut config = Config::new();
    for host in list("host") {
        config.host(host);
    }
    for address in list("hostaddr") {
        config.hostaddr(
            address
                .parse()
                .map_err(|_| "hostaddr is not an IP address")?,
        );
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        match Path::new(SOCKET_DIRECTORY).is_dir() {
            true => config.host(SOCKET_DIRECTORY),
            false => config.host("localhost"),
        };
    }
    for port in list("port") {
        config.port(
            port.parse()
                .map_err(|_| "port is not a number from 1 to 65535")?,
        );
    }
    if let Some(user) = option("user") {
        config.user(user);
    }
    if let Some(name) = option("dbname") {
        config.dbname(name);
    }
    if let Some(options) = option("options") {
        config.options(options);
    }
    config.application_name(option("application_name").unwrap_or("webhook-relay"));
    // 0 is without a limit, as for libpq.
    let timeout = match option("connect_timeout").map(str::parse::<u32>) {
        None => CONNECT_TIMEOUT,
        Some(Ok(0)) => Duration::from_secs(u32::MAX.into()),
        Some(Ok(seconds)) => Duration::from_secs(seconds.into()),
        Some(Err(_)) => return Err("connect_timeout is not a number of seconds".into()),
    };
    config.connect_timeout(timeout);
    match option("target_session_attrs") {
        // A sender writes, whatever it was told.
        None | Some("any" | "read-write" | "primary") => {}
        Some(_) => return Err("target_session_attrs must be read-write: a sender writes".into()),
    }
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.keepalives_idle(CUT_OFF_AFTER / 2);
    config.keepalives_interval(CUT_OFF_AFTER / 5);
    config.keepalives_retries(3);
    config.tcp_user_timeout(CUT_OFF_AFTER);

    let addresses = addresses(&config);
    let (host, port) = &addresses[0];
    let user = option("user").unwrap_or_default();
    let database = option("dbname").unwrap_or(user);
    let own_file = home.map(|home| home.join(".pgpass"));
    let passfile = option("passfile").map(PathBuf::from).or(own_file);
    if let Some(password) = option("password") {
        config.password(password);
    } else if let Some(passfile) = passfile
        && let Some(password) = passfile::password(&passfile, [host, port, database, user])
    {
        config.password(password);
    }
    let places: Vec<String> = addresses.iter().map(|(h, p)| format!("{h}:{p}")).collect();
    let name = format!("database \"{database}\" at {}", places.join(" or "));
    let tls = tls(&mut config, option("sslmode"), option("sslrootcert"), home)?;
    Ok(Target { config, tls, name })
}

/// Host and port of each server that there may be, at least one. A socket is `localhost` in a password file.
fn addresses(config: &Config) -> Vec<(String, String)> {
    let mut hosts: Vec<String> = (config.get_hosts().iter())
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(_) => "localhost".to_owned(),
        })
        .collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    let ports = config.get_ports();
    let port = |number: usize| ports.get(number).or(ports.first()).unwrap_or(&5432);
    let numbered = hosts.into_iter().enumerate();
    numbered
        .map(|(number, host)| (host, port(number).to_string()))
        .collect()
}

fn tls(
    config: &mut Config,
    mode: Option<&str>,
    roots: Option<&str>,
    home: Option<&Path>,
) -> Result<Tls, String> {
    let own_file = home.map(|home| home.join(".postgresql/root.crt"));
    let own_file = own_file.filter(|path| path.is_file());
    let file = roots
        .filter(|roots| *roots != "system")
        .map(PathBuf::from)
        .or(own_file);
    let (ssl_mode, check) = match mode.unwrap_or("prefer") {
        "disable" => (SslMode::Disable, Check::Nothing),
        "allow" | "prefer" => (SslMode::Prefer, Check::Nothing),
        // As in libpq, a connection that names certificate authorities wants them asked.
        "require" if roots.is_none() && file.is_none() => (SslMode::Require, Check::Nothing),
        "require" | "verify-ca" => (SslMode::Require, Check::Authority),
        "verify-full" => (SslMode::Require, Check::AuthorityAndName),
        _ => {
            return Err("sslmode is disable, prefer, require, verify-ca or verify-full".to_owned());
        }
    };
    config.ssl_mode(ssl_mode);
    match (check, roots, file) {
        (Check::Nothing, ..) => Tls::unchecked(),
        (check, Some("system"), _) => Tls::trusting_the_system(check),
        (check, _, Some(file)) => Tls::trusting(&file, check),
        (_, _, None) => Err(
            "sslmode needs certificate authorities: say sslrootcert=FILE, or \
                             sslrootcert=system for those of this machine"
                .to_owned(),
        ),
    }
}

fn uri(connection: &str) -> Option<&str> {
    let schemes = ["postgresql://", "postgres://"];
    schemes
        .iter()
        .find_map(|scheme| connection.strip_prefix(scheme))
}

const NOT_A_URI: &str = "the connection string is not a valid URI; a character of a password that has a \
                         meaning there is written as % and its code, such as %40 for @";

fn of_uri(rest: &str) -> Result<HashMap<String, String>, String> {
    let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(NOT_A_URI.to_owned()),
    };
    let mut options = HashMap::new();
    let mut set = |name: &str, value: &str| {
        if !value.is_empty() {
            options.insert(name.to_owned(), decoded(value)?);
        }
        Ok::<_, String>(())
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    if database.contains('/') || database.contains('@') {
        return Err(NOT_A_URI.to_owned());
    }
    let (login, addresses) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    set("user", user)?;
    set("password", password)?;
    set("dbname", database)?;
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for address in addresses.split(',') {
        // An IPv6 address has brackets.
        let (host, port) = match address.strip_prefix('[').and_then(|a| a.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => address.split_once(':').unwrap_or((address, "")),
        };
        hosts.push(host);
        ports.push(port);
    }
    set("host", &hosts.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        let ports = ports
            .iter()
            .map(|port| if port.is_empty() { "5432" } else { port });
        set("port", &ports.collect::<Vec<_>>().join(","))?;
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(NOT_A_URI)?;
        set(name, value)?;
    }
    Ok(options)
}

fn of_keywords(text: &str) -> Result<HashMap<String, String>, String> {
    const WRONG: &str = "the connection string is neither a URI nor of the form keyword=value";
    let mut options = HashMap::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest.next_if(|next| next.is_whitespace()).is_some() {}
        if rest.peek().is_none() {
            return Ok(options);
        }
        let mut name = String::new();
        while let Some(next) = rest.next_if(|next| *next != '=') {
            name.push(next);
        }
        rest.next().ok_or(WRONG)?;
        while rest.next_if(|next| next.is_whitespace()).is_some() {}
        let is_quoted = rest.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match rest.next() {
                Some('\\') => value.push(rest.next().ok_or(WRONG)?),
                Some('\'') if is_quoted => break,
                Some(next) if next.is_whitespace() && !is_quoted => break,
                Some(next) => value.push(next),
                None if is_quoted => return Err(WRONG.to_owned()),
                None => break,
            }
        }
        options.insert(name.trim().to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(connection: &str) -> Config {
        target_with(connection, &[])
    }

    fn target_with(connection: &str, variables: &[(&str, &str)]) -> Config {
        let variable = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        match Target::read(connection, &variable) {
            Ok(target) => target.config,
            Err(problem) => panic!("{connection}: {problem}"),
        }
    }

    fn hosts(config: &Config) -> Vec<String> {
        let name = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        config.get_hosts().iter().map(name).collect()
    }

    #[test]
    fn a_uri_is_read_as_libpq_reads_it() {
        let config =
            target("postgresql://relay:a%40b@one:5433,two,[::1]:5434/sh%20op?application_name=x");
        assert_eq!(hosts(&config), ["one", "two", "::1"]);
        assert_eq!(config.get_ports(), [5433, 5432, 5434]);
        assert_eq!(config.get_user(), Some("relay"));
        assert_eq!(config.get_password(), Some(&b"a@b"[..]));
        assert_eq!(config.get_dbname(), Some("sh op"));
        assert_eq!(config.get_application_name(), Some("x"));
        assert_eq!(
            config.get_target_session_attrs(),
            TargetSessionAttrs::ReadWrite
        );
    }

    #[test]
    fn every_server_that_may_be_the_primary_is_named() {
        let named = |connection: &str| Target::read(connection, &|_| None).ok().map(|t| t.name);
        let name = named("host=one,two port=5433,5434 user=relay dbname=shop").unwrap();
        assert_eq!(name, "database \"shop\" at one:5433 or two:5434");
        let name = named("host=one,two port=5433 user=relay dbname=shop").unwrap();
        assert_eq!(name, "database \"shop\" at one:5433 or two:5433");
        let name = named("user=relay dbname=shop").unwrap();
        assert_eq!(name, "database \"shop\" at localhost:5432");
    }

    #[test]
    fn keywords_are_read_as_libpq_reads_them() {
        let config =
            target("host=one  user = relay password='it\\'s a \\\\' dbname=shop sslmode=disable");
        assert_eq!(hosts(&config), ["one"]);
        assert_eq!(config.get_user(), Some("relay"));
        assert_eq!(config.get_password(), Some(&b"it's a \\"[..]));
        assert_eq!(config.get_dbname(), Some("shop"));
        assert_eq!(config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn variables_fill_in_what_the_connection_string_leaves_out() {
        let variables = [
            ("PGHOST", "two"),
            ("PGUSER", "other"),
            ("PGPASSWORD", "secret"),
        ];
        let config = target_with("postgresql://relay@one/shop", &variables);
        assert_eq!(hosts(&config), ["one"]);
        assert_eq!(config.get_user(), Some("relay"));
        assert_eq!(config.get_password(), Some(&b"secret"[..]));
        let config = target_with("", &variables);
        assert_eq!(hosts(&config), ["two"]);
        assert_eq!(config.get_user(), Some("other"));
    }
}

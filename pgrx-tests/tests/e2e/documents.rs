//! README.md and docs/: statements that they tell people to run do run, or fail as they say, and their links lead
//! somewhere.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use webhook_e2e::{Cluster, Receiver, host, port, wait};

const SHOP: &str = include_str!("documents/shop.sql");
const ENDPOINTS: &str = include_str!("documents/endpoints.sql");
/// In the place of '..', which stands for the id of an event.
const EVENT: &str = "01a1e312-6c6e-71fe-ab1c-32c85f00efd8";
/// Other tests run the SQL of these pages, in places that are made for it; reference.md has only synopses.
const ELSEWHERE: [&str; 3] = ["portable.md", "reference.md", "scale.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// By their paths from the root.
fn pages() -> BTreeMap<String, String> {
    let mut paths = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ]
    .map(str::to_owned)
    .to_vec();
    for entry in fs::read_dir(root().join("docs")).expect("there is docs/") {
        let name = entry.expect("it can be read").file_name();
        let name = name.into_string().expect("its names are UTF-8");
        if name.ends_with(".md") {
            paths.push(format!("docs/{name}"));
        }
    }
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).expect("a page can be read");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// Each with the number of its line.
fn sql_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        // In a list it is indented.
        match &mut block {
            None if line.trim_start() == "```sql" => block = Some((number + 1, String::new())),
            None => {}
            Some(_) if line.trim_start() == "```" => blocks.extend(block.take()),
            Some((_, sql)) => {
                sql.push_str(line);
                sql.push('\n');
            }
        }
    }
    blocks
}

/// As a reader would run it, but that it goes to a receiver of ours and that nobody watches for ever.
fn as_run_here(sql: &str, receiver: &Receiver) -> String {
    let mut sql = sql.replace("'..'", &format!("'{EVENT}'"));
    let url = receiver.url("");
    let url = url.trim_end_matches('/');
    for scheme in ["https://", "http://"] {
        let mut rest = std::mem::take(&mut sql);
        while let Some(begin) = rest.find(scheme) {
            let host = &rest[begin + scheme.len()..];
            let end = host.find(['/', '\'', ' ', '"']).unwrap_or(host.len());
            if rest[begin..].starts_with(url) {
                sql.push_str(&rest[..begin + url.len()]);
                rest = rest[begin + url.len()..].to_owned();
                continue;
            }
            sql.push_str(&rest[..begin]);
            sql.push_str(url);
            rest = host[end..].to_owned();
        }
        sql.push_str(&rest);
    }
    let watched = sql.lines().map(|line| match line.find("\\watch") {
        Some(at) => format!("{};", &line[..at]),
        None => line.to_owned(),
    });
    watched.collect::<Vec<_>>().join("\n")
}

/// Returns the output of psql.
fn run(cluster: &Cluster, database: &str, sql: &str) -> Result<String, String> {
    let mut psql = cluster.program("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "footer=off"])
        .args(["-d", database, "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut psql = psql.spawn().expect("psql can be started");
    let mut stdin = psql.stdin.take().expect("it has an input");
    stdin.write_all(sql.as_bytes()).expect("psql reads it");
    drop(stdin);
    let output = psql.wait_with_output().expect("psql ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

#[test]
fn the_sql_of_every_page_runs_from_its_first_line_to_its_last() {
    let mut trouble = Vec::new();
    let mut ran = 0;
    for (path, text) in pages() {
        let blocks = sql_blocks(&text);
        if blocks.is_empty() || ELSEWHERE.iter().any(|page| path.ends_with(page)) {
            continue;
        }
        let (cluster, receiver) = (Cluster::builder().start(), Receiver::start());
        let mut client = cluster.connect("postgres");
        client.batch_execute("CREATE DATABASE shop").unwrap();
        let makes = |what: &str| text.contains(what);
        let mut preparation = SHOP.to_owned();
        if !makes("CREATE ROLE relay") {
            preparation.push_str("CREATE ROLE relay;");
        }
        if !makes("CREATE EXTENSION webhook;\nSELECT") {
            preparation.push_str(ENDPOINTS);
        }
        run(&cluster, "shop", &as_run_here(&preparation, &receiver)).expect("the shop can be made");
        for (line, sql) in blocks {
            ran += 1;
            let outcome = run(&cluster, "shop", &as_run_here(&sql, &receiver));
            let told = sql
                .lines()
                .find_map(|line| line.strip_prefix("-- ERROR:  "));
            match (outcome, told) {
                (Ok(_), None) => {}
                (Err(error), Some(told)) if error.contains(told) => {}
                (outcome, _) => trouble.push(format!("{path}:{line}: {outcome:?}")),
            }
        }
    }
    assert!(trouble.is_empty(), "{}", trouble.join("\n"));
    assert!(ran > 50, "only {ran} blocks were found");
}

#[test]
fn the_sql_of_the_page_on_databases_without_the_library_runs_there() {
    let blocks = sql_blocks(&pages()["docs/portable.md"]);
    assert!(!blocks.is_empty());
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.plain_database("shop");
    host::install_portable(&cluster, &database);
    database.execute("CREATE ROLE app");
    for (line, sql) in blocks {
        let outcome = run(&cluster, database.name(), &sql);
        assert!(outcome.is_ok(), "docs/portable.md:{line}: {outcome:?}");
    }
}

/// Blocks between fences with this name.
fn code<'a>(section: &'a str, name: &str) -> Vec<&'a str> {
    let fence = format!("```{name}\n");
    let blocks = section.split(&*fence).skip(1);
    blocks
        .filter_map(|block| block.split("```").next())
        .collect()
}

#[test]
fn the_quick_start_runs_as_written_on_a_server_as_installed() {
    let page = &pages()["README.md"];
    let (_, section) = page.split_once("\n## Quick start").expect("there is one");
    let (section, _) = section.split_once("\n## ").expect("it is not the last");
    let port = port::free();
    let here = |code: &str| code.replace("8080", &port.to_string());

    let indented = section.lines().filter_map(|line| line.strip_prefix("    "));
    let command = indented.take_while(|line| !line.is_empty());
    let command = here(&command.collect::<Vec<_>>().join("\n"));
    assert!(command.starts_with("python3 -c"), "{command}");
    let receiver = Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _receiver = Ending(receiver.expect("sh can be started"));
    wait::until("the receiver to listen", || {
        TcpStream::connect(("127.0.0.1", port)).map(drop)
    });

    let cluster = Cluster::builder()
        .setting("webhook.allow_networks = ''")
        .setting("webhook.require_https = public")
        .start();
    let [tour @ .., look] = &code(section, "sql")[..] else {
        panic!("there is nothing to run");
    };
    for sql in tour {
        run(&cluster, "postgres", &here(sql)).unwrap();
    }
    let trimmed = |text: &str| {
        let lines = text
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let shown = trimmed(code(section, "text")[0]);
    wait::until("what the page shows", || {
        match trimmed(&run(&cluster, "postgres", look).unwrap()) {
            seen if seen == shown => Ok(()),
            seen => Err(seen),
        }
    });
}

struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const WIDTH: usize = 110;

/// A table and an image cannot be wrapped.
#[test]
fn lines_of_pages_end_before_column_110() {
    let mut wide = Vec::new();
    for (path, text) in pages() {
        for (number, line) in text.lines().enumerate() {
            let is_one_piece = ["|", "!["].iter().any(|sign| line.trim().starts_with(sign));
            if line.chars().count() > WIDTH && !is_one_piece {
                wide.push(format!("{path}:{}", number + 1));
            }
        }
    }
    assert_eq!(wide, Vec::<String>::new());
}

/// As GitHub makes it of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.collect()
}

/// Outside of code.
fn links(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let found = prose.split("](").skip(1);
    let targets = found.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.map(str::to_owned).collect()
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there() {
    let pages = pages();
    let mut trouble = Vec::new();
    let mut followed = 0;
    for (path, text) in &pages {
        for link in links(text) {
            if link.starts_with("https://") {
                continue;
            }
            followed += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(path).parent().unwrap_or(Path::new(""));
            let target = match file {
                "" => path.into(),
                _ => folder.join(file),
            };
            let full = root().join(&target);
            if !full.exists() {
                trouble.push(format!("{path}: {link}: there is no such file"));
            } else if !heading.is_empty() {
                let page = fs::read_to_string(&full).unwrap_or_default();
                let mut headings = page.lines().filter(|line| line.starts_with('#'));
                if !headings.any(|line| anchor(line) == heading) {
                    trouble.push(format!("{path}: {link}: there is no such heading"));
                }
            }
        }
    }
    assert!(trouble.is_empty(), "{}", trouble.join("\n"));
    assert!(followed > 30, "only {followed} links were found");
}

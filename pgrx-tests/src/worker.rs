//! A background worker's process, as the server and the kernel see it.

use std::fs;
use std::time::Duration;

use libc::c_int;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::process::unprivileged;
use crate::wait;

/// A worker that is told to end does so, whatever it waits for: a stop of the server and DROP DATABASE wait no longer.
pub const ENDS_WITHIN: Duration = Duration::from_secs(6);

/// The pid of the database's worker, waited for until it has made a turn: one that was started for a new database may
/// still find that the extension is not there, and leave.
#[track_caller]
pub fn pid(database: &Database) -> c_int {
    successor(database, 0)
}

/// The pid of the worker that came after this one, waited for.
#[track_caller]
pub fn successor(database: &Database, earlier: c_int) -> c_int {
    let awaited = format!("a worker of {} other than {earlier}", database.name());
    wait::until(&awaited, || {
        let at_work = "SELECT CASE WHEN state IN ('running', 'held', 'disabled') THEN worker_pid END FROM webhook_status()";
        match database.query_one_value(at_work) {
            Some(pid) if pid != earlier => Ok(pid),
            seen => Err(seen),
        }
    })
}

/// From webhook_status().
#[track_caller]
pub fn state_and_reason(database: &Database) -> (String, String) {
    let sql = "SELECT state, coalesce(reason, '') FROM webhook_status()";
    let row = database.connect().query_one(sql, &[]).unwrap();
    (row.get(0), row.get(1))
}

/// How many worker processes are connected to the database.
#[track_caller]
pub fn count(database: &Database) -> i64 {
    database.query_one_value(
        "SELECT count(*) FROM pg_stat_activity
         WHERE backend_type = 'webhook worker' AND datname = current_database()",
    )
}

#[track_caller]
pub fn terminate(database: &Database, pid: c_int) {
    let signalled: bool = database.query_one_value(&format!("SELECT pg_terminate_backend({pid})"));
    assert!(signalled, "there is no process {pid} to terminate");
}

/// The server takes the loss of a process for a crash and restarts all of them; waits until it has.
#[track_caller]
pub fn kill(cluster: &Cluster, database: &Database) {
    let starts = || cluster.log().matches("ready to accept connections").count();
    let before = starts();
    signal(pid(database), libc::SIGKILL);
    wait::until("the server to recover", || match starts() {
        seen if seen > before => Ok(()),
        seen => Err(seen),
    });
}

#[track_caller]
pub fn signal(pid: c_int, signal: c_int) {
    // SAFETY: kill has no memory preconditions.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "could not send signal {signal} to {pid}");
}

#[track_caller]
pub fn threads(pid: c_int) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks
        .unwrap_or_else(|error| panic!("no process {pid}: {error}"))
        .count()
}

/// Bytes of memory that it shares with nobody.
#[track_caller]
pub fn private_memory(pid: c_int) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.unwrap_or_else(|error| panic!("no process {pid}: {error}"));
    let size = (status.lines()).find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = size.and_then(|size| size.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.expect("the kernel counts it in kB");
    1024 * kilobytes.parse::<u64>().expect("it is a number")
}

/// How often its main thread has gone to sleep so far.
#[track_caller]
pub fn sleeps(pid: c_int) -> u64 {
    sleeps_of(pid, &pid.to_string()).unwrap_or_else(|| panic!("no process {pid}"))
}

/// Bytes of memory that it may write to, used or not.
#[track_caller]
pub fn writable_memory(pid: c_int) -> usize {
    size_of(pid, "VmData:")
}

/// Bytes of its address space.
#[track_caller]
pub fn address_space(pid: c_int) -> usize {
    size_of(pid, "VmSize:")
}

#[track_caller]
fn size_of(pid: c_int, what: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.unwrap_or_else(|error| panic!("no process {pid}: {error}"));
    let size = (status.lines()).find_map(|line| line.strip_prefix(what));
    let kilobytes = size.and_then(|size| size.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.expect("the kernel counts it in kB");
    1024 * kilobytes.parse::<usize>().expect("it is a number")
}

/// Limits memory as `vm.overcommit_memory = 2` does: memory beyond it is not there. The address space could be
/// limited too, but the arenas of malloc have a gigabyte of it in stock.
pub fn limit_memory(pid: c_int, bytes: &str) {
    limit(pid, &format!("--data={bytes}:"));
}

/// Limits the address space, as `ulimit -v` does: for a process without threads.
pub fn limit_address_space(pid: c_int, bytes: &str) {
    limit(pid, &format!("--as={bytes}:"));
}

/// The numbers of its files stay below this.
pub fn limit_open_files(pid: c_int, end: usize) {
    limit(pid, &format!("--nofile={end}:"));
}

pub fn open_files(pid: c_int) -> Vec<usize> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let numbers = files.filter_map(|file| file.ok()?.file_name().into_string().ok()?.parse().ok());
    numbers.collect()
}

fn limit(pid: c_int, soft: &str) {
    // As the user of the server: root in a container may not.
    let status = unprivileged("prlimit")
        .arg(format!("--pid={pid}"))
        .arg(soft)
        .status();
    assert!(status.expect("prlimit can be run").success());
}

/// How often its other threads have gone to sleep, among those that are there now.
#[track_caller]
pub fn sleeps_of_other_threads(pid: c_int) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.unwrap_or_else(|error| panic!("no process {pid}: {error}"));
    let threads = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    threads
        .filter(|thread| *thread != pid.to_string())
        .filter_map(|thread| sleeps_of(pid, &thread))
        .sum()
}

fn sleeps_of(pid: c_int, thread: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let count = (status.lines()).find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let count = count.expect("the kernel counts context switches");
    Some(count.trim().parse().expect("the count is a number"))
}

/// The time that its main thread has computed so far.
#[track_caller]
pub fn computed(pid: c_int) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat"));
    let stat = stat.unwrap_or_else(|error| panic!("no process {pid}: {error}"));
    // The name, in parentheses, may have spaces; user and system time are the 12th and 13th after it.
    let (_, fields) = stat.rsplit_once(')').expect("the kernel names the thread");
    let fields = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields
        .map(|ticks| ticks.parse::<u64>().expect("it is a number"))
        .sum();
    // SAFETY: sysconf has no memory preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}

/// Lines of the process in the server's log at WARNING or above, except alerts.
pub fn complaints(cluster: &Cluster, pid: c_int) -> Vec<String> {
    const LEVELS: [&str; 4] = ["WARNING:", "ERROR:", "FATAL:", "PANIC:"];
    let marker = format!("[{pid}] ");
    (cluster.log().lines())
        .filter(|line| line.contains(&marker) && LEVELS.iter().any(|level| line.contains(level)))
        .filter(|line| !line.contains("WARNING:  webhook endpoint \""))
        .filter(|line| !line.contains("WARNING:  webhook metric "))
        .map(str::to_owned)
        .collect()
}

//! Counters of the kernel and of the server.

use std::fs;
use std::time::Duration;

use postgres::Client;
use webhook_e2e::Cluster;

/// The time that all threads of a process have computed so far.
pub fn cpu(pid: i32) -> Duration {
    stat(pid).map_or(Duration::ZERO, |stat| ticks(stat.own))
}

/// The same for all processes of a server, with the ended ones.
pub fn server_cpu(cluster: &Cluster) -> Duration {
    let postmaster = cluster.pid();
    let pids = (fs::read_dir("/proc").into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let total = (pids.filter_map(stat))
        .map(|stat| match stat {
            stat if stat.pid == postmaster => stat.own + stat.ended_children,
            stat if stat.parent == postmaster => stat.own,
            _ => 0,
        })
        .sum();
    ticks(total)
}

struct Stat {
    pid: i32,
    parent: i32,
    own: u64,
    ended_children: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have spaces; proc(5) counts from the pid as 1.
    let fields: Vec<i64> = (text.rsplit_once(')')?.1.split_whitespace())
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    Some(Stat {
        pid,
        parent: field(4) as i32,
        own: (field(14) + field(15)) as u64,
        ended_children: (field(16) + field(17)) as u64,
    })
}

fn ticks(ticks: u64) -> Duration {
    // SAFETY: sysconf has no memory preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}

/// How often the threads of a process have gone to sleep so far, and how many threads there are.
pub fn sleeps_and_threads(pid: i32) -> (u64, usize) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let sleeps: Vec<u64> = (tasks.flatten().flatten())
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let mut lines = status.lines();
            let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            count.trim().parse().ok()
        })
        .collect();
    (sleeps.iter().sum(), sleeps.len())
}

/// Bytes of WAL and transaction ids that the server has used so far.
pub fn wal_and_xids(client: &mut Client) -> (i64, i64) {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint,
                      pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let row = client.query_one(sql, &[]).expect("the server counts them");
    (row.get(0), row.get(1))
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// In milliseconds.
pub fn percentile(durations: &mut [Duration], percent: usize) -> f64 {
    durations.sort();
    match durations.len() {
        0 => f64::NAN,
        length => durations[(length - 1) * percent / 100].as_secs_f64() * 1e3,
    }
}

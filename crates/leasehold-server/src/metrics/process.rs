//! Resource usage of this process, read from `/proc`. Values that are not available are omitted.

use std::fs;

/// Clock ticks per second: 100 on every Linux system that this runs on.
const TICKS: f64 = 100.0;

/// Resource usage of this process.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
}

impl Usage {
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let status = fs::read_to_string("/proc/self/status").ok();
        let files = fs::read_dir("/proc/self/fd").ok();
        Self {
            cpu_seconds: stat.as_deref().and_then(cpu_seconds),
            resident_bytes: status.as_deref().and_then(resident_bytes),
            open_files: files.map(|files| files.count() as u64),
        }
    }
}

/// Returns fields 14 and 15 in seconds. Field 2 is a name in parentheses that may contain spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_usage_is_parsed() {
        let stat = "12 (a b) c) S 1 1 1 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("nonsense"), None);
        assert_eq!(resident_bytes("VmPeak:\t1 kB\nVmRSS:\t  12 kB\n"), Some(12 * 1024));
    }
}

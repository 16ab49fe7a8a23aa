//! A limit on the CPU time of one process: a control group of its own, of version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "distlock-faults-";

/// A control group with one process in it. Removed when dropped; a group that a killed driver left
/// behind is removed by the next driver that makes one.
pub struct Quota {
    dir: PathBuf,
    /// The earlier group of the process.
    home: PathBuf,
    pid: u32,
    pub means: &'static str,
}

impl Quota {
    /// Puts a process into a group of its own, without a limit yet. `None`: it is not possible on
    /// this machine.
    pub fn over(pid: u32) -> Option<Quota> {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let mut found = None;
        for line in cgroups.lines() {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let path = path.trim_start_matches('/');
            if controllers.split(',').any(|controller| controller == "cpu") {
                let root = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
                    .into_iter()
                    .find(|root| Path::new(root).is_dir())?;
                found = Some((Path::new(root).join(path), "a quota of cgroup 1"));
                break;
            }
            if controllers.is_empty()
                && fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
                    .is_ok_and(|all| all.contains("cpu"))
            {
                found = Some((Path::new("/sys/fs/cgroup").join(path), "a quota of cgroup 2"));
            }
        }
        let (home, means) = found?;
        for left in fs::read_dir(&home)
            .ok()?
            .flatten()
            .filter(|left| left.file_name().to_string_lossy().starts_with(NAME))
        {
            // Only a group without processes can be removed.
            let _ = fs::remove_dir(left.path());
        }
        let quota = Quota { dir: home.join(format!("{NAME}{pid}")), home, pid, means };
        if means.ends_with('2') {
            // Refused if the parent group has processes of its own, unless it is the root.
            let _ = fs::write(quota.home.join("cgroup.subtree_control"), "+cpu");
        }
        fs::create_dir(&quota.dir).ok()?;
        quota.write(false).ok()?;
        fs::write(quota.dir.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(quota)
    }

    /// Sets the limit of 5 %, or removes it.
    pub fn limit(&self, on: bool) {
        self.write(on).expect("the quota could be set before");
    }

    fn write(&self, on: bool) -> std::io::Result<()> {
        if self.means.ends_with('2') {
            return fs::write(
                self.dir.join("cpu.max"),
                if on { "5000 100000" } else { "max 100000" },
            );
        }
        fs::write(self.dir.join("cpu.cfs_quota_us"), if on { "5000" } else { "-1" })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A process that has ended is in no group any more.
        let _ = fs::write(self.home.join("cgroup.procs"), self.pid.to_string());
        let _ = fs::remove_dir(&self.dir);
    }
}

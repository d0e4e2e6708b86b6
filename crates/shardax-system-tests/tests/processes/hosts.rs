//! Hosts that are really apart: network namespaces with addresses of their own, joined by a bridge, and MPI over TCP.
//!
//! If namespaces are not allowed, or if there is no Open MPI, these tests are skipped with a message.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::launch::{CASE, launchers};
use crate::*;

/// Two hosts, and the bridge between them where the launcher runs. They go with it.
struct Network {
    names: [String; 3],
    /// The replacement of ssh, and the temporary files of each host.
    folder: PathBuf,
}

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Network {
    fn new() -> Option<Network> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = format!("{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names = [0, 1, 2].map(|i| format!("sx{number}h{i}"));
        if !ip(&format!("netns add {}", names[0])) {
            println!("skipped: no network namespaces");
            return None;
        }
        let bridge = &names[0];
        let network = Network { names: names.clone(), folder: std::env::temp_dir().join(format!("shardax-{number}")) };
        std::fs::create_dir(&network.folder).unwrap();
        // The last number of the address is that of the host. Daemons that share a folder of temporary files may both try to
        // make one in it, and end.
        let script = format!(
            "#!/bin/sh\nhost=$((${{1##*.}} - 10)); shift\nexport TMPDIR={}/$host; mkdir -p $TMPDIR\n\
             exec ip netns exec sx{number}h$host sh -c \"$*\"\n",
            network.folder.display()
        );
        std::fs::write(network.agent(), script).unwrap();
        std::fs::set_permissions(network.agent(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut steps = vec![
            format!("-n {bridge} link set lo up"),
            format!("-n {bridge} link add br0 type bridge"),
            format!("-n {bridge} addr add 10.77.0.1/24 dev br0"),
            format!("-n {bridge} link set br0 up"),
        ];
        for (i, host) in names.iter().enumerate().skip(1) {
            steps.extend([
                format!("netns add {host}"),
                format!("-n {host} link set lo up"),
                format!("-n {bridge} link add v{i} type veth peer name eth0 netns {host}"),
                format!("-n {bridge} link set v{i} master br0 up"),
                format!("-n {host} addr add 10.77.0.{}/24 dev eth0", 10 + i),
                format!("-n {host} link set eth0 up"),
            ]);
        }
        if !steps.iter().all(|step| ip(step)) {
            println!("skipped: no bridges between network namespaces");
            return None;
        }
        Some(network)
    }

    fn agent(&self) -> PathBuf {
        self.folder.join("agent")
    }

    /// Starts one process on each host.
    fn start(&self, case: &str, output: &Path, variables: &[(&str, &str)]) -> Option<Child> {
        let open_mpi = |launcher: &PathBuf| {
            let version = Command::new(launcher).arg("--version").output();
            version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("Open MPI) 4"))
        };
        let Some(launcher) = launchers().into_iter().find(open_mpi) else {
            println!("skipped: no Open MPI 4");
            return None;
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(launcher);
        command.args(["-n", "2", "-H", "10.77.0.11:1,10.77.0.12:1", "--bind-to", "none", "--mca", "plm_rsh_agent"]);
        command.arg(self.agent()).args(["--mca", "btl", "tcp,self"]);
        // Its daemon shares what it knows of the machine at an address that may be its own stack's.
        command.args(["--mca", "rtc_hwloc_vmhole", "none"]);
        for what in ["btl_tcp_if_include", "oob_tcp_if_include"] {
            command.args(["--mca", what, "10.77.0.0/24"]);
        }
        let case = format!("fault-{case}");
        for (name, value) in variables.iter().chain(&[(CASE, case.as_str())]) {
            command.args(["-x", &format!("{name}={value}")]);
        }
        command.arg(std::env::current_exe().unwrap()).args(["child", "--exact", "--nocapture", "--test-threads=1"]);
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        let file = std::fs::File::create(output).unwrap();
        command.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
        Some(command.spawn().unwrap())
    }

    fn link(&self, state: &str) {
        assert!(ip(&format!("-n {} link set v1 {state}", self.names[0])));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // What still runs there, such as the launcher's daemon behind a link that was cut.
            let output = Command::new("ip").args(["netns", "pids", name]).output();
            for pid in output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default().lines() {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
            ip(&format!("netns del {name}"));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until it has ended, or until its output has all of these.
fn wait(child: &mut Child, output: &Path, texts: &[&str], bound: u64) -> String {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(output).unwrap_or_default();
        let ended = child.try_wait().unwrap().is_some();
        if texts.iter().all(|wanted| text.contains(wanted)) {
            return text;
        }
        assert!(!ended && begun.elapsed() < Duration::from_secs(bound), "{texts:?} is not in:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn on_hosts(case: &str, timeout: &str, look: impl FnOnce(&Network, &mut Child, &Path)) {
    if std::env::var_os(JOB).is_some() {
        return;
    }
    let Some(network) = Network::new() else { return };
    let output = network.folder.join("output");
    let variables = [("SHARDAX_COLLECTIVE_TIMEOUT", timeout), ("SHARDAX_COLLECTIVE_PATIENCE", "1")];
    if let Some(mut child) = network.start(case, &output, &variables) {
        look(&network, &mut child, &output);
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[test]
fn a_link_that_is_cut_for_seconds_delays_and_changes_nothing() {
    on_hosts("steps", "60", |network, child, output| {
        wait(child, output, &["[0 begins]", "[1 begins]"], 60);
        network.link("down");
        std::thread::sleep(Duration::from_secs(4));
        network.link("up");
        wait(child, output, &["[0 is right]", "[1 is right]", "have not reached call 0 of `"], 90);
    });
}

#[test]
fn a_link_that_is_cut_for_good_is_an_error() {
    on_hosts("steps", "4", |network, child, output| {
        wait(child, output, &["[0 begins]", "[1 begins]"], 60);
        network.link("down");
        // Of the host that the launcher still reaches.
        wait(child, output, &["within 4s processes [0] have not reached call 0 of `"], 60);
    });
}

//! Notices of preemption: all processes finish the same step, save it, and end with status 75.
//!
//! `SHARDAX_TEST_SIGNALS=200 cargo test -p shardax-train --test runs preempted -- --nocapture` prints the table.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::training::{Run, expected};
use super::{Running, says, send, wait_for};

const STATUS: i32 = 75;

/// Returns `true` if SIGINT is ignored here, as in a shell's background job; programs that it starts leave it ignored.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    u64::from_str_radix(mask.trim(), 16).expect("a number") & 0b10 != 0
}

#[test]
fn each_signal_ends_the_run_with_its_step_saved() {
    let run = Run::new().pace(5);
    let mut before = 0;
    for (signal, name) in [("TERM", "SIGTERM"), ("USR1", "SIGUSR1"), ("USR2", "SIGUSR2"), ("INT", "SIGINT")] {
        if signal == "INT" && ignores_interrupts() {
            continue;
        }
        let running = Running::start(&mut run.alone(), &run.folder.join("err"));
        wait_for("step", || run.last(0).filter(|step| *step > before + 3));
        send(signal, &running.id());
        let (status, text) = running.end(60);
        assert_eq!(status.code(), Some(STATUS), "{text}");
        let step = run.last(0).expect("a step");
        let line = format!("shardax: preempted ({name}): the run ends after step {step}, which is saved in ");
        says(&text, &[&line, "rerun to resume (status 75)"]);
        assert_eq!(run.saved().last(), Some(&step));
        assert_eq!(run.state_at(step), expected(step));
        before = step;
    }
}

/// A step takes two seconds; the signal comes in its middle.
#[test]
fn a_step_under_way_is_never_cut() {
    let run = Run::new().pace(2000);
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    wait_for("step", || run.last(0));
    std::thread::sleep(Duration::from_millis(700));
    let (before, begun) = (run.last(0).expect("a step"), Instant::now());
    send("TERM", &running.id());
    let (status, text) = running.end(60);
    assert_eq!(status.code(), Some(STATUS), "{text}");
    assert!(begun.elapsed() > Duration::from_millis(600));
    assert_eq!(run.saved(), [before + 1]);
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    if ignores_interrupts() {
        return;
    }
    let run = Run::new().pace(30_000);
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    run.pid(0);
    std::thread::sleep(Duration::from_secs(2));
    // Two within a second are one notice.
    send("TERM", &running.id());
    send("TERM", &running.id());
    std::thread::sleep(Duration::from_millis(1300));
    assert!(running.text().is_empty(), "{}", running.text());
    send("INT", &running.id());
    let (status, text) = running.end(5);
    assert_eq!(status.signal(), Some(2), "{text}");
    says(&text, &["SIGINT again: the process ends at once, without saving"]);
}

#[test]
fn a_notice_may_come_from_anywhere() {
    let run = Run::new().pace(5).then("poll");
    let (status, text) = Running::start(&mut run.alone(), &run.folder.join("err")).end(60);
    assert_eq!(status.code(), Some(STATUS), "{text}");
    says(&text, &["shardax: preempted (spot notice): the run ends after step "]);
    assert_eq!(run.saved().last(), run.last(0).as_ref());
}

#[test]
fn a_run_may_return_instead() {
    let run = Run::new().pace(5).then("return");
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    wait_for("step", || run.last(0));
    send("USR1", &running.id());
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    says(&text, &["returned because of Some(\"SIGUSR1\")"]);
    let step = run.last(0).expect("a step");
    assert_eq!((run.saved(), run.weights()), (vec![step], format!("{:?}", expected(step))));
}

/// A run that is complete has nothing to resume, and signals end a program again that is done with it.
#[test]
fn signals_end_a_program_whose_run_is_over() {
    let run = Run::new().steps(5).then("sleep");
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    wait_for("end of the run", || run.folder.join("done-0").exists().then_some(()));
    send("TERM", &running.id());
    let (status, text) = running.end(5);
    assert_eq!((status.signal(), text.as_str()), (Some(15), ""));
}

/// Shells start programs in the background with SIGINT ignored.
#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let run = Run::new().pace(5);
    let uninterrupted = run.alone();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
        .arg(uninterrupted.get_program())
        .args(uninterrupted.get_args());
    shell.envs(uninterrupted.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let running = Running::start(&mut shell, &run.folder.join("err"));
    let step = wait_for("step", || run.last(0));
    send("INT", &running.id());
    wait_for("further step", || run.last(0).filter(|last| *last > step + 20));
    send("TERM", &running.id());
    assert_eq!(running.end(60).0.code(), Some(STATUS));
}

/// One process of four gets a signal, at a random moment; each run resumes the one before.
#[test]
fn all_processes_save_the_same_step() {
    let count: u64 = std::env::var("SHARDAX_TEST_SIGNALS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let run = Run::new();
    let mut random = fastrand::Rng::with_seed(count);
    let (mut latest, mut longest, mut table) = (0, Duration::ZERO, [[0; 4]; 4]);
    for signal in 0..count {
        let Some(mut command) = run.processes(4) else { return };
        let running = Running::start(&mut command, &run.folder.join("err"));
        let pids: Vec<String> = (0..4).map(|rank| run.pid(rank)).collect();
        std::thread::sleep(Duration::from_millis(random.u64(0..1500)));
        let (kind, rank) = (random.usize(0..4), random.usize(0..4));
        table[kind][rank] += 1;
        let begun = Instant::now();
        send(["TERM", "USR1", "USR2", "INT"][kind], &pids[rank]);
        let (status, text) = running.end(90);
        longest = longest.max(begun.elapsed());
        assert_eq!(status.code(), Some(STATUS), "signal {signal}: {text}");
        let last_steps: Vec<Option<u64>> = (0..4).map(|rank| run.last(rank)).collect();
        let step = last_steps[0].expect("a step");
        assert_eq!(last_steps, [Some(step); 4], "signal {signal}: {text}");
        says(&text, &[&format!("the run ends after step {step}, which is saved in")]);
        assert!(step > latest, "signal {signal}: {step} after {latest}");
        assert_eq!(run.saved().last(), Some(&step), "signal {signal}: {text}");
        assert_eq!(run.state_at(step), expected(step), "signal {signal}");
        latest = step;
    }
    // The rest without a signal: as a run that nothing disturbed.
    let run = run.steps(latest + 10);
    let Some(mut command) = run.processes(4) else { return };
    let (status, text) = Running::start(&mut command, &run.folder.join("err")).end(90);
    assert!(status.success(), "{text}");
    assert_eq!(run.weights(), format!("{:?}", expected(latest + 10)));
    println!("{count} signals (by kind and process {table:?}): same step {count}, bit-equal {count}, lost steps 0");
    println!("the last step is {latest}; the longest time from the signal to the end is {longest:?}");
}

//! Processes that end while programs run: `main` returns, something calls `exit`, a signal arrives, the process forks.
//! Each scenario runs in a child process. The binary has no test harness, so that it can return from `main` itself.

mod common;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::*;
use shardax_pjrt::*;

const SIZE: usize = 1024;
const CHILD: &str = "SHARDAX_TEST_CHILD";

/// The name of a scenario, the code of the child, and the test of how it ends.
type Scenario = (&'static str, fn(), fn(&'static str));

#[rustfmt::skip]
const SCENARIOS: &[Scenario] = &[
    ("exit_waits_for_what_runs_on_one_device", || start_and_exit(1), |name| drop(ends_with(name, 7))),
    ("exit_waits_for_what_runs_on_four_devices", || start_and_exit(4), |name| drop(ends_with(name, 7))),
    ("exit_in_another_thread_waits", exit_in_another_thread, |name| drop(ends_with(name, 7))),
    ("main_returns_with_programs_queued", || drop(queue(2)), |name| drop(ends_with(name, 0))),
    ("exit_does_not_wait_without_bound", exit_with_an_endless_program, |name| is_left(name, 7)),
    ("main_does_not_wait_without_bound", endless, |name| is_left(name, 0)),
    ("exit_in_a_function_of_the_host", exit_in_a_handler, |name| drop(ends_with(name, 5))),
    ("locals_that_compute_when_dropped", locals_that_compute, |name| {
        let ended = ends_with(name, 0);
        assert_eq!(ended.output.matches("dropped [3.0, 5.0]").count(), 2, "{}{}", ended.output, ended.errors);
    }),
    ("a_thread_named_main_may_end", a_thread_named_main, |name| drop(ends_with(name, 0))),
    ("a_forked_child_gets_errors", fork, |name| drop(ends_with(name, 0))),
    ("sigint_in_a_step", steps, |name| a_signal_ends(name, libc::SIGINT)),
    ("sigterm_in_a_step", steps, |name| a_signal_ends(name, libc::SIGTERM)),
];

fn main() {
    if let Ok(name) = std::env::var(CHILD) {
        let (_, run, _) = SCENARIOS.iter().find(|(scenario, _, _)| *scenario == name).expect("a scenario");
        return run();
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, _, test) in SCENARIOS {
        if filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str())) {
            test(name);
            println!("test {name} ... ok");
        }
    }
}

struct Ended {
    status: ExitStatus,
    output: String,
    errors: String,
    took: Duration,
}

fn start(name: &str) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(this);
    command.env(CHILD, name).env("SHARDAX_EXIT_SECONDS", if name.ends_with("bound") { "0.5" } else { "60" });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait(name: &str, mut child: Child) -> Ended {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{name}: the process does not end");
        }
        sleep(Duration::from_millis(5));
    }
    let took = start.elapsed();
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ended { status: output.status, output: stdout.into_owned(), errors: stderr.into_owned(), took }
}

fn ends_with(name: &str, code: i32) -> Ended {
    let ended = wait(name, start(name));
    assert_eq!(ended.status.code(), Some(code), "{name}: {}\n{}{}", ended.status, ended.output, ended.errors);
    ended
}

/// Expects that the process ends with its exit status while programs run, and writes a message.
fn is_left(name: &str, code: i32) {
    let ended = ends_with(name, code);
    assert!(ended.errors.contains("the process ends while programs still run"), "{name}: {}", ended.errors);
    assert!(ended.took < Duration::from_secs(20), "{name}: {:?}", ended.took);
}

/// Expects that a signal during a step ends the process immediately.
fn a_signal_ends(name: &str, signal: i32) {
    for delay in [0, 1, 7, 30, 100] {
        let mut child = start(name);
        let mut line = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap(); // the steps have started
        sleep(Duration::from_millis(delay));
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(child.id() as i32, signal) };
        let ended = wait(name, child);
        assert_eq!(ended.status.signal(), Some(signal), "{name}: {}\n{}", ended.status, ended.errors);
        assert!(ended.took < Duration::from_secs(10), "{name}: {:?}", ended.took);
    }
}

/// x · x … · x, a slow program.
fn powers() -> String {
    let ty = format!("tensor<{SIZE}x{SIZE}xf32>");
    let steps: String = (0..12)
        .map(|i| {
            format!(
                "%x{} = stablehlo.dot_general %x{i}, %x0, contracting_dims = [1] x [0] : ({ty}, {ty}) -> {ty}\n",
                i + 1
            )
        })
        .collect();
    format!("func.func @main(%x0: {ty}) -> {ty} {{\n{steps}return %x12 : {ty}\n}}")
}

/// Starts a program on each device without waiting.
fn queue(devices: usize) -> (Client, Executable) {
    let client = new_client(devices);
    let options = CompileOptions { portable: true, ..Default::default() };
    let exe = client.compile(&powers(), &options, signature([f32s(&[SIZE as i64; 2])])).unwrap();
    for device in client.devices() {
        exe.execute_on(&[&square(&client, device)], device).unwrap();
    }
    (client, exe)
}

fn square(client: &Client, device: &Device) -> Buffer {
    let data = bytes(&vec![1e-3; SIZE * SIZE]);
    client.buffer_from_host(&data, ElementType::F32, &[SIZE as i64; 2], device).unwrap()
}

fn start_and_exit(devices: usize) {
    let (client, exe) = queue(devices);
    // A thread that keeps launching while the process ends gets errors.
    let device = client.devices()[0].clone();
    let x = square(&client, &device);
    std::thread::spawn(move || {
        while exe.execute_on(&[&x], &device).is_ok() {
            sleep(Duration::from_millis(300));
        }
    });
    sleep(Duration::from_millis(5));
    exit(7)
}

fn exit_in_another_thread() {
    let (client, exe) = queue(2);
    let thread = std::thread::spawn(move || {
        let device = &client.devices()[1];
        exe.execute_on(&[&square(&client, device)], device).unwrap();
        exit(7)
    });
    let _ = thread.join();
}

/// Starts a program that practically never ends: a loop of 2⁶² steps.
fn endless() {
    let client = new_client(1);
    let program = "func.func @main(%x: tensor<i64>) -> tensor<i64> {
      %n = stablehlo.constant dense<4611686018427387904> : tensor<i64>
      %one = stablehlo.constant dense<1> : tensor<i64>
      %r = stablehlo.while(%i = %x) : tensor<i64>
        cond { %c = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
               stablehlo.return %c : tensor<i1> }
        do { %j = stablehlo.add %i, %one : tensor<i64>
             stablehlo.return %j : tensor<i64> }
      return %r : tensor<i64>
    }";
    let spec = ParameterSpec::new(ElementType::S64, []);
    let exe = client.compile(program, &CompileOptions::default(), signature([spec])).unwrap();
    let x = client.buffer_from_host(&[0; 8], ElementType::S64, &[], &client.devices()[0]).unwrap();
    let (send, started) = channel();
    std::thread::spawn(move || {
        send.send(()).unwrap();
        exe.execute(&[&x]).and_then(|y| y[0][0].block_until_ready())
    });
    started.recv().unwrap();
    sleep(Duration::from_millis(300));
}

fn exit_with_an_endless_program() {
    endless();
    exit(7)
}

fn exit_in_a_handler() {
    let client = new_client(1);
    ffi::register(client.plugin(), "test.exit", |_| exit(5)).unwrap();
    let text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = stablehlo.custom_call @test.exit(%x) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32>
      return %y : tensor<4xf32>
    }";
    let exe = client.compile(text, &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
    let _ = exe.execute(&[&put(&client, 0, &[1.0; 4])]).and_then(|y| y[0][0].block_until_ready());
}

/// Runs two programs when it is dropped: one that has run before, and one that has not.
struct Computes(Option<(Client, Executable)>);

impl Drop for Computes {
    fn drop(&mut self) {
        let Some((client, exe)) = self.0.take() else { return };
        fn run(exe: &Executable, client: &Client) -> Vec<f32> {
            let y = exe.execute(&[&put(client, 0, &[1.0, 2.0])]).unwrap();
            get(&y[0][0])
        }
        assert_eq!(run(&exe, &client), [3.0, 5.0]);
        let fresh = client.compile(&affine(2, false), &CompileOptions::default(), signature([f32s(&[2])])).unwrap();
        println!("dropped {:?}", run(&fresh, &client));
        queue(1);
    }
}

thread_local! {
    static COMPUTES: RefCell<Computes> = const { RefCell::new(Computes(None)) };
}

fn locals_that_compute() {
    fn local() {
        let client = new_client(1);
        // Created before XLA's thread locals, so that it is dropped after them.
        COMPUTES.with_borrow(|_| ());
        let exe = client.compile(&affine(2, false), &CompileOptions::default(), signature([f32s(&[2])])).unwrap();
        get(&exe.execute(&[&put(&client, 0, &[1.0, 2.0])]).unwrap()[0][0]);
        queue(1);
        COMPUTES.with_borrow_mut(|computes| computes.0 = Some((client, exe)));
    }
    std::thread::spawn(local).join().unwrap();
    local();
}

fn a_thread_named_main() {
    let client = new_client(1);
    let exe = client.compile(&affine(2, false), &CompileOptions::default(), signature([f32s(&[2])])).unwrap();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("main".into());
        thread.spawn_scoped(scope, || drop(queue(1))).unwrap().join().unwrap();
    });
    assert_eq!(get(&exe.execute(&[&put(&client, 0, &[1.0, 2.0])]).unwrap()[0][0]), [3.0, 5.0]);
}

fn fork() {
    let (client, powers) = queue(2);
    let exe = client.compile(&affine(2, false), &CompileOptions::default(), signature([f32s(&[2])])).unwrap();
    let x = put(&client, 0, &[1.0, 2.0]);
    let y = exe.execute(&[&x]).unwrap().remove(0).remove(0);
    for leaves in [false, true] {
        // SAFETY: the child calls only functions under test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_error =
                |result: Result<()>| assert!(result.unwrap_err().message.contains("this process was forked"));
            is_error(exe.execute(&[&x]).map(|_| ()));
            is_error(
                client.compile(&affine(2, false), &CompileOptions::default(), signature([f32s(&[2])])).map(|_| ()),
            );
            is_error(y.to_host(&mut [0; 8]));
            is_error(client.buffer_from_host(&[0; 8], ElementType::F32, &[2], &client.devices()[0]).map(|_| ()));
            is_error(Client::new(client.plugin(), &[]).map(|_| ()));
            if leaves { return drop((x, y, exe, powers, client)) } else { exit(9) }
        }
        let mut status = 0;
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(ExitStatus::from_raw(status).code(), Some(if leaves { 0 } else { 9 }));
    }
    // The parent still works.
    assert_eq!(get(&exe.execute(&[&x]).unwrap()[0][0]), [3.0, 5.0]);
}

fn steps() {
    // A process that a shell starts in the background ignores SIGINT, and this test needs the default. SAFETY: the
    // default action is not a handler.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
    }
    let client = new_client(4);
    let exe = client.compile(&all_reduce(4, 1 << 18, false), &partitions(4), signature([f32s(&[1 << 18])])).unwrap();
    let xs: Vec<Buffer> = (0..4).map(|d| put(&client, d, &vec![1.0; 1 << 18])).collect();
    exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap();
    print!(".");
    std::io::stdout().flush().unwrap();
    loop {
        exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap();
    }
}

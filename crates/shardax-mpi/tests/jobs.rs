//! Real jobs: every MPI launcher that is found starts this program several times.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{CASE, job, launchers};
use shardax_mpi::{Kind, Launcher, Messages, Search, World};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn join() -> World {
    let launcher = Launcher::detect();
    World::join(launcher.as_ref(), &Search::from_environment(launcher.as_ref())).unwrap()
}

fn leave(world: &World) {
    world.leave(Duration::from_secs(30)).unwrap();
}

/// The body of a job's processes; does nothing in a normal test run.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    match case.as_str() {
        "exchange" => exchange(),
        "pieces" => pieces(),
        "groups" => groups(),
        "threads" => threads(),
        "store" => store(),
        "missing" => missing(),
        "late" => late(),
        "joins" => joins(),
        "dies" => dies(),
        other => panic!("no case {other}"),
    }
    println!("[{case} is right]");
}

/// Runs a case and checks that it succeeds in every process.
#[track_caller]
fn runs(case: &str, processes: usize) {
    for launcher in launchers() {
        let outcome = job(&launcher, case, processes, &[]);
        let right = outcome.text.matches(&format!("[{case} is right]")).count();
        assert!(outcome.success && right == processes, "{case} under {}:\n{}", launcher.display(), outcome.text);
    }
}

fn pattern(from: usize, to: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + from * 31 + to * 101) as u8).collect()
}

/// Uneven parts, some of them empty.
fn len(from: usize, to: usize) -> usize {
    (from * 5 + to * 3) % 4 * 1000 + from
}

fn exchange_on(comm: &shardax_mpi::Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    let counts: Vec<usize> = (0..size).map(|from| len(from, 0)).collect();
    let gathered = comm.all_gather(pattern(rank, 0, counts[rank]), &counts).unwrap().wait(soon()).unwrap();
    assert_eq!(gathered, (0..size).flat_map(|from| pattern(from, 0, counts[from])).collect::<Vec<_>>());

    // A separate buffer for each process, and one for all with another tag.
    let messages = Messages {
        sent: (0..size).map(|to| pattern(rank, to, len(rank, to))).collect(),
        sends: (0..size).map(|to| (to, to)).collect(),
        receives: (0..size).map(|from| (from, vec![0; len(from, rank)])).collect(),
    };
    let same = Messages {
        sent: vec![pattern(rank, 7, 4000)],
        sends: (0..size).map(|to| (to, 0)).collect(),
        receives: (0..size).map(|from| (from, vec![0; 4000])).collect(),
    };
    let (mut messages, mut same) = (comm.exchange(1, messages).unwrap(), comm.exchange(2, same).unwrap());
    assert!(same.wait_until(soon()).unwrap() && messages.wait_until(soon()).unwrap());
    let received = [messages, same].map(|request| request.into_buffers().1);
    let expected = [|from, rank| pattern(from, rank, len(from, rank)), |from, _| pattern(from, 7, 4000)];
    assert_eq!(
        received,
        expected.map(|of: fn(usize, usize) -> Vec<u8>| (0..size).map(|from| of(from, rank)).collect::<Vec<_>>())
    );

    for root in 0..size {
        let data = if rank == root { pattern(root, 9, 5000) } else { vec![0; 5000] };
        assert_eq!(comm.broadcast(root, data).unwrap().wait(soon()).unwrap(), pattern(root, 9, 5000));
    }
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let receive = comm.receive(before, 3000).unwrap();
    let send = comm.send(next, pattern(rank, next, 3000)).unwrap();
    assert_eq!(receive.wait(soon()).unwrap(), pattern(before, rank, 3000));
    send.wait(soon()).unwrap();
}

fn exchange() {
    let world = join();
    exchange_on(world.data().unwrap());
    let error = world.data().unwrap().all_gather(vec![0; 3], &[1]).err().unwrap();
    assert_eq!(error.kind, Kind::InvalidArgument);
    assert!(error.message.contains("all_gather of 3 bytes by process"), "{error}");
    assert_eq!(
        world.data().unwrap().broadcast(99, vec![]).err().unwrap().message,
        "process 99 does not exist; there are 4"
    );
    assert_eq!((world.local_rank(), world.local_size()), (world.rank(), 4));
    assert_eq!(world.launcher().map(|l| (l.rank, l.size)), Some((world.rank(), 4)));
    leave(&world);
}

#[test]
fn bytes_are_exchanged_among_four_processes() {
    runs("exchange", 4);
}

fn pieces() {
    let world = join();
    // A size that divides nothing.
    exchange_on(&world.data().unwrap().with_piece_size(97));
    exchange_on(&world.data().unwrap().with_piece_size(1));
    leave(&world);
}

#[test]
fn messages_larger_than_a_piece_arrive_whole() {
    runs("pieces", 3);
}

fn groups() {
    let world = join();
    let rank = world.rank();
    let (members, tag) = if rank.is_multiple_of(2) { ([0, 2], 0) } else { ([1, 3], 1) };
    let group = world.data().unwrap().group(&members, tag).unwrap();
    assert_eq!((group.rank(), group.size()), (rank / 2, 2));
    exchange_on(&group);
    for wrong in [&[2, 0][..], &[0, 9], &[(rank + 1) % 4]] {
        assert_eq!(world.data().unwrap().group(wrong, 5).err().unwrap().kind, Kind::InvalidArgument);
    }
    leave(&world);
}

#[test]
fn groups_exchange_beside_each_other() {
    runs("groups", 4);
}

fn threads() {
    let world = join();
    let comms: Vec<_> = (0..4).map(|_| world.data().unwrap().duplicate().unwrap()).collect();
    std::thread::scope(|scope| {
        for (thread, comm) in comms.iter().enumerate() {
            scope.spawn(move || {
                for i in 0..100u64 {
                    let mine = i * 10 + comm.rank() as u64 + thread as u64;
                    let all = comm.all_gather(mine.to_ne_bytes().to_vec(), &vec![8; comm.size()]).unwrap();
                    let all = all.wait(soon()).unwrap();
                    let sum: u64 = all.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).sum();
                    assert_eq!(sum, (0..comm.size() as u64).map(|r| i * 10 + r + thread as u64).sum::<u64>());
                }
            });
        }
    });
    leave(&world);
}

#[test]
fn four_threads_exchange_at_once() {
    runs("threads", 2);
}

fn store() {
    let world = join();
    let (store, rank) = (world.store(), world.rank());
    let long = vec![rank as u8; 300_000];
    store.put(&format!("from/{rank}"), &long).unwrap();
    for peer in 0..world.size() {
        assert_eq!(store.get(&format!("from/{peer}"), Duration::from_secs(30)).unwrap(), vec![peer as u8; 300_000]);
    }
    assert_eq!(store.put("from/0", b"again").err().unwrap().message, "the key \"from/0\" already has a value");
    assert_eq!(store.try_get("nobody's").unwrap(), None);
    let error = store.get("nobody's", Duration::from_millis(20)).err().unwrap();
    assert_eq!(error.kind, Kind::DeadlineExceeded);
    assert_eq!(error.message, "no process put a value for the key \"nobody's\" within 20ms");
    for _ in 0..3 {
        store.barrier("often", Duration::from_secs(30)).unwrap();
    }
    leave(&world);
}

#[test]
fn all_processes_can_read_a_value() {
    runs("store", 3);
}

fn missing() {
    let world = join();
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_millis(600));
    } else {
        let error = world.store().barrier("noon", Duration::from_millis(200)).err().unwrap();
        assert_eq!(error.kind, Kind::DeadlineExceeded);
        assert_eq!(error.message, "2 of 3 processes reached the barrier \"noon\" within 200ms; missing: processes [1]");
    }
    // A process that timed out still counts as arrived.
    world.store().barrier("noon", Duration::from_secs(30)).unwrap();
    leave(&world);
}

#[test]
fn a_barrier_names_who_is_missing() {
    runs("missing", 3);
}

fn late() {
    let world = join();
    if world.rank() == 0 {
        let request = world.data().unwrap().all_gather(vec![7; 100], &[100, 100]).unwrap();
        let error = request.wait(Instant::now() + Duration::from_millis(100)).err().unwrap();
        assert_eq!(error.kind, Kind::DeadlineExceeded);
        assert_eq!(error.message, "process 0 of 2 timed out waiting for the others in an exchange of 200 bytes");
        world.store().barrier("given up", Duration::from_secs(30)).unwrap();
    } else {
        world.store().barrier("given up", Duration::from_secs(30)).unwrap();
        // The abandoned operation stays in flight and does no harm.
        let _ = world.data().unwrap().all_gather(vec![7; 100], &[100, 100]).unwrap().wait(soon());
    }
    leave(&world);
}

#[test]
fn a_wait_ends_at_its_deadline() {
    runs("late", 2);
}

fn joins() {
    let world = join();
    let error = World::join(None, &Search::default()).err().unwrap();
    assert_eq!(error.message, "this process has already joined the others");
    leave(&world);
    leave(&world.clone());
}

#[test]
fn joining_twice_is_an_error() {
    // The second `leave` has nobody to wait for, which only works with one process.
    runs("joins", 1);
}

fn dies() {
    let world = join();
    if world.rank() == 1 {
        std::process::abort();
    }
    let _ = world.data().unwrap().receive(1, 8).unwrap().wait(Instant::now() + Duration::from_secs(50));
    std::process::exit(1);
}

#[test]
fn a_process_that_dies_ends_the_job() {
    for launcher in launchers() {
        let start = Instant::now();
        let outcome = job(&launcher, "dies", 2, &[]);
        assert!(!outcome.success && start.elapsed() < Duration::from_secs(30), "{}", outcome.text);
    }
}

#[test]
fn without_a_library_the_message_says_what_was_searched_and_how_to_get_one() {
    for launcher in launchers() {
        let outcome = job(&launcher, "exchange", 2, &[("SHARDAX_MPI_LIBRARY", "/nowhere/libmpi.so")]);
        assert!(!outcome.success);
        for phrase in [
            "this process is 1 of 2 started by mpirun",
            "and no MPI library was found; SHARDAX_MPI_LIBRARY names a library that cannot be used:",
            "/nowhere/libmpi.so: No such file",
            "`apt-get install openmpi-bin`, or `pip install mpich`",
        ] {
            assert!(outcome.text.contains(phrase), "{phrase}:\n{}", outcome.text);
        }
    }
}

#[test]
fn the_library_of_another_mpi_is_named_with_the_launcher() {
    // The library reports one process, regardless of the launcher.
    if launchers().is_empty() {
        return;
    }
    let start = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CASE, "exchange")
        .envs([("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("SHARDAX_MPI_LIBRARY", "libmpi.so.40")])
        .env_remove("PMI_FD")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&start.stderr);
    if text.contains("no MPI library was found") {
        println!("skipped: no libmpi.so.40");
        return;
    }
    for phrase in [
        "this process is 1 of 4 started by mpirun (Hydra, of MPICH), but to the MPI library it is one of 1",
        "libmpi.so.40 (Open MPI v",
        "belongs to another MPI than the launcher. Set SHARDAX_MPI_LIBRARY",
    ] {
        assert!(text.contains(phrase), "{phrase}:\n{text}");
    }
}

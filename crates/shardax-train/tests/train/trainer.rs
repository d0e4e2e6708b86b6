//! The training loop: it resumes bit by bit, accumulates gradients with one reduction, and stops at an error.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use shardax::ErrorKind;
use shardax_nn::prelude::*;
use shardax_train::checkpoint::{Checkpoint, CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Example, HostArray, Source, Stream};
use shardax_train::log::JsonLines;
use shardax_train::{Average, Control, FiniteCheck, LastValue, MultiMetric, Trainer, accumulate};

use super::{Folder, fails, setup};

type State = (TrainState<Linear, AdamW>, RngStream);

/// Points of a line with some noise, equal in each process and each run.
fn data() -> impl Stream<Item = (Array, Array)> {
    fn point(i: usize) -> Result<Example> {
        let x = [(i % 7) as f32 / 7.0, (i % 5) as f32 / 5.0];
        let y = 2.0 * x[0] - x[1] + (i % 3) as f32 * 0.01;
        Ok(Example::from([
            ("x".into(), HostArray::from_slice(&x, &[2])?),
            ("y".into(), HostArray::from_slice(&[y], &[1])?),
        ]))
    }
    fn arrays(batch: Example) -> Result<(Array, Array)> {
        Ok((batch["x"].to_array()?, batch["y"].to_array()?))
    }
    (105usize, point).stream().shuffled(3).batch(10).shuffle(4, 1).map(arrays).prefetch(2)
}

fn begin(seed: u32) -> Result<State> {
    let model = Linear::new(2, 1, &mut Rngs::new(seed));
    Ok((TrainState::create(model, adamw(0.05, 1e-3))?, RngStream::new(random::key(seed))))
}

fn train_step((state, mut rngs): State, (x, y): (Array, Array)) -> Result<(State, MultiMetric)> {
    let noise = random::normal(rngs.next(), x.shape()) * 0.01;
    let loss = |model: Linear| (model.forward(&x + &noise) - &y).square().mean(..);
    let (loss, grads) = value_and_grad(loss).call(state.params.clone())?;
    let metrics = MultiMetric::new().with("loss", Average::of(loss)).with("count", LastValue::of(&state.step));
    Ok(((state.apply_gradients(grads)?, rngs), metrics))
}

fn bits<T: Tree>(tree: &T) -> Result<Vec<Vec<u8>>> {
    tree::leaves(tree).iter().map(Array::to_bytes).collect()
}

/// Twenty steps in a single run have the same bits and logs as in three runs, two of them stopped early.
#[test]
fn a_run_that_is_stopped_resumes_bit_for_bit() -> Result<()> {
    setup();
    let step = jit(train_step).donate_argnums([0]);
    let run = |folder: &Folder, stop: Option<u64>, seed: u32| -> Result<State> {
        let options = CheckpointManagerOptions::new().save_interval_steps(4).max_to_keep(2);
        let mut checkpoints = CheckpointManager::new(folder.join("checkpoints"), options)?;
        let mut stops = false;
        Trainer::new(20)
            .log_every(2)
            .quiet()
            .check_finite()
            .logger(JsonLines::new(folder.join("metrics.jsonl"))?)
            .checkpoints(&mut checkpoints)
            .evaluate_every(5, "test", |state: &State| {
                Ok(MultiMetric::new().with("weight", Average::of(&state.0.params.kernel)))
            })
            .hook(|at| {
                // An end in the middle, where no checkpoint is.
                if stop == Some(at.step) && !std::mem::replace(&mut stops, true) {
                    return Err(shardax::Error::new(ErrorKind::Runtime, "the power went"));
                }
                Ok(Control::Continue)
            })
            .run(begin(seed)?, &mut data(), |state, batch| step.call((state, batch)))
    };
    let (whole, parts) = (Folder::new(), Folder::new());
    let want = run(&whole, None, 0)?;
    fails(run(&parts, Some(7), 0), &["step 7: the power went"]);
    fails(run(&parts, Some(14), 1), &["step 14: the power went"]);
    let got = run(&parts, None, 2)?;
    assert_eq!(bits(&got)?, bits(&want)?);

    fn log(folder: &Folder) -> Result<Vec<(u64, Option<f64>, Option<f64>)>> {
        let lines = JsonLines::read(folder.join("metrics.jsonl"))?;
        Ok(lines
            .iter()
            .map(|l| (l.step, l.values.get("loss").copied(), l.values.get("test/weight").copied()))
            .collect())
    }
    let lines = log(&whole)?;
    assert_eq!(log(&parts)?, lines);
    let steps: Vec<u64> = lines.iter().map(|(step, ..)| *step).collect();
    assert_eq!(steps, [2, 4, 5, 6, 8, 10, 12, 14, 15, 16, 18, 20]);
    assert!(lines[11].1 < lines[0].1.map(|loss| loss * 0.5) && lines[5].2.is_some(), "{lines:?}");
    let steps = CheckpointManager::new(parts.join("checkpoints"), CheckpointManagerOptions::new())?.all_steps()?;
    assert_eq!(steps, [16, 20]);
    Ok(())
}

/// The gradients of k parts are added, divided by k, and reduced once; they equal the gradients of the entire batch.
#[test]
fn accumulated_gradients_are_reduced_once() -> Result<()> {
    setup();
    let (w, x) = (random::normal(random::key(0), [6, 3]), random::normal(random::key(1), [8, 12, 6]));
    fn loss(w: Array, x: Array) -> Array {
        x.matmul(w).tanh().square().mean(..)
    }
    let gradient = |parts: usize| {
        pmap(move |w: Array, x: Array| -> Result<Array> {
            let grads = accumulate(parts, |x: Array| grad(loss).call((&w, x)), x)?;
            Ok(pmean(grads, "batch"))
        })
        .axis_name("batch")
        .in_axes((None, 0))
        .out_axes(None)
    };
    let expected = grad(loss).call((&w, x.reshape([96, 6])))?;
    for parts in [1, 3, 4, 12] {
        assert!(allclose(gradient(parts).call((&w, &x))?, &expected, 1e-5, 1e-6)?, "{parts} parts");
    }
    let sent = |parts: usize| -> Result<Vec<(usize, usize)>> {
        let collectives = gradient(parts).lower((&w, &x))?.compile()?.collectives()?;
        Ok(collectives.iter().map(|c| (c.bytes, c.count)).collect())
    };
    assert_eq!(sent(4)?, [(6 * 3 * 4, 1)]);
    assert_eq!(sent(4)?, sent(1)?);
    // In `shard_map`, whose values have types that vary.
    let mesh = make_mesh([("batch", 8)])?;
    let sharded = shard_map(
        |w: Array, x: Array| -> Result<Array> {
            let w = pcast(w, "batch");
            let grads = accumulate(4, |x: Array| grad(loss).call((&w, x)), x)?;
            Ok(pmean(grads, "batch"))
        },
        &mesh,
    )
    .in_specs((P![], P!["batch"]))
    .out_specs(P![]);
    assert!(allclose(sharded.call((&w, x.reshape([96, 6])))?, &expected, 1e-5, 1e-6)?);
    fails(gradient(5).call((&w, &x)), &["cannot be split into 5 parts", "float32[12,6]"]);
    fails(accumulate(0, |x: Array| Ok(x), ones([2])), &["into 0 parts"]);
    Ok(())
}

#[test]
fn a_run_stops_at_nan_with_the_step_and_the_array() -> Result<()> {
    setup();
    let grows = jit(|(w, b): (Array, Array), x: Array| -> ((Array, Array), MultiMetric) {
        // The third step divides by zero.
        ((&w / (&b - 2.0) * &x, b + 1.0), MultiMetric::new())
    });
    let mut data = (10usize, |_| Ok(ones([2]))).stream();
    let run = |data: &mut _| {
        Trainer::new(10).quiet().check_finite().run((ones([2]), zeros(())), data, |state, x| grows.call((state, x)))
    };
    fails(run(&mut data), &["after step 3 `[0]` is not finite", "learning rate"]);
    // The last step is saved although it is not due, but not if a second run could take it for the result.
    let folder = Folder::new();
    for _ in 0..2 {
        let options = CheckpointManagerOptions::new().save_interval_steps(100);
        let mut checkpoints = CheckpointManager::new(&folder.0, options)?;
        let trainer = Trainer::new(3).quiet().check_finite().checkpoints(&mut checkpoints);
        let mut data = (10usize, |_| Ok(ones([2]))).stream();
        let end = trainer.run((ones([2]), zeros(())), &mut data, |state, x| grows.call((state, x)));
        fails(end, &["after step 3 `[0]` is not finite"]);
    }
    let mut check = FiniteCheck::new();
    for step in 0..200 {
        check.step(step, &ones([2]))?;
    }
    check.finish()
}

#[test]
fn a_run_stops_where_copies_differ() -> Result<()> {
    setup();
    // The mean over devices is forgotten.
    let step = pmap(|w: Array, x: Array| (w - x * 0.1, MultiMetric::new()))
        .in_axes((None, 0))
        .out_axes(None)
        .check_replication(false);
    let mut data = (10usize, |_| Ok(arange(0..8).astype(DType::F32))).stream();
    let run = Trainer::new(10).quiet().check_replicas_every(4).run(zeros(()), &mut data, |w, x| step.call((w, x)));
    fails(run, &["after step 4 the copies of `` on several devices differ", "pmean"]);
    Ok(())
}

#[test]
fn a_run_ends_with_its_data_or_at_a_hook() -> Result<()> {
    setup();
    fn step(w: Array, x: Array) -> Result<(Array, MultiMetric)> {
        Ok((w + x, MultiMetric::new().with("loss", Average::of(array(1.0f32)))))
    }
    let ones_of = |n: u64| (4usize, |_| Ok(array(1.0f32))).stream().epochs(n);
    assert_eq!(Trainer::new(100).quiet().run(zeros(()), &mut ones_of(3), step)?.item::<f32>()?, 12.0);
    let mut steps_seen = Vec::new();
    let stop = Trainer::new(100).quiet().tokens_per_step(32.0).flops(1e6, 1e12).log_every(2).on_log(|step, values| {
        steps_seen.push((step, values["loss"], values["tokens_per_second"] / values["steps_per_second"]));
        assert!(values["mfu"] > 0.0 && values["time/input_wait"] >= 0.0 && values["time/input_wait"] <= 1.0);
        Ok(Control::Continue)
    });
    let stop = stop.hook(|at| Ok(if at.step == 6 { Control::Stop } else { Control::Continue }));
    assert_eq!(stop.run(zeros(()), &mut ones_of(30), step)?.item::<f32>()?, 6.0);
    assert_eq!(steps_seen, [(2, 1.0, 32.0), (4, 1.0, 32.0), (6, 1.0, 32.0)]);
    // What fails names its step.
    fn broken(w: Array, x: Array) -> Result<(Array, MultiMetric)> {
        match w.item::<f32>()? {
            3.0 => Err(shardax::Error::new(ErrorKind::Value, "no")),
            _ => step(w, x),
        }
    }
    fails(Trainer::new(9).quiet().run(zeros(()), &mut ones_of(9), broken), &["step 4: no"]);
    Ok(())
}

/// The steps of a window are in the profile, and no others. One at a time in a process: no other test here makes one.
#[test]
fn a_profile_has_the_steps_of_its_window() -> Result<()> {
    use std::io::Read;
    setup();
    fn of_the_profile(w: Array) -> Array {
        w * 2.0 + 1.0
    }
    let folder = Folder::new();
    let step = jit(of_the_profile);
    let mut data = (4usize, |_| Ok(())).stream();
    // Each step is waited for, so that none runs on into the window.
    let run = |w: Array, ()| Ok((block_until_ready(step.call(&w)?)?, MultiMetric::new()));
    let _ = Trainer::new(9).quiet().profile(3..6, folder.join("profile")).run(zeros([64]), &mut data, run)?;
    let mut files = vec![folder.join("profile")];
    let trace = loop {
        let path = files.pop().expect("a trace");
        match path.is_dir() {
            true => {
                files.extend(std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()))
            }
            false if path.to_string_lossy().ends_with(".trace.json.gz") => {
                break std::fs::read(path).expect("the trace");
            }
            false => {}
        }
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(trace.as_slice()).read_to_string(&mut text).expect("a packed text");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let runs = events.iter().filter(|e| e["name"] == "of_the_profile" && e["ph"] == "X");
    let mut by_thread = BTreeMap::new();
    runs.for_each(|e| *by_thread.entry((e["pid"].to_string(), e["tid"].to_string())).or_insert(0) += 1);
    // The host that starts them, and the device: each three times.
    assert!(by_thread.len() == 2 && by_thread.values().all(|count| *count == 3), "{by_thread:?}");
    Ok(())
}

/// The times of slow data, of a step that is slow to start, and of devices, and the rates that are computed from them.
#[test]
fn the_time_of_a_step_is_split() -> Result<()> {
    setup();
    fn nap() {
        std::thread::sleep(std::time::Duration::from_millis(8))
    }
    // Of products so small that one thread of the device computes them, which leaves the others to the test.
    let slow = jit(|w: Array| fori_loop(0, 10_000, |_, w: Array| w.matmul(&w) / 32.0, w));
    let begin = ones([32, 32]);
    slow.call(&begin)?.block_until_ready()?;
    let run = |slow_data: bool, slow_start: bool, slow_device: bool| -> Result<Vec<f64>> {
        let item = move |_: usize| {
            if slow_data {
                nap();
            }
            Ok(1.0f32)
        };
        let mut steps_seen = Vec::new();
        let watch = |_: u64, values: &BTreeMap<String, f64>| {
            fn of(name: &str, values: &BTreeMap<String, f64>) -> f64 {
                values[name]
            }
            let rate = of("steps_per_second", values);
            assert!(
                (of("tokens_per_second", values) / rate - 32.0).abs() < 1e-6
                    && (of("mfu", values) / rate - 5e-3).abs() < 1e-9
            );
            assert!((of("examples_per_second", values) / rate - 4.0).abs() < 1e-6);
            steps_seen =
                vec![of("time/input_wait", values), of("time/dispatch", values), of("time/device_wait", values)];
            Ok(Control::Continue)
        };
        let trainer = Trainer::new(20)
            .quiet()
            .log_every(4)
            .tokens_per_step(32.0)
            .examples_per_step(4.0)
            .flops(5e9, 1e12)
            .on_log(watch);
        let mut data = (4usize, item).stream();
        let _ = trainer.run(begin.clone(), &mut data, |w, x| {
            if slow_start {
                nap();
            }
            let w = if slow_device { slow.call(w)? } else { w };
            Ok((w.clone(), MultiMetric::new().with("loss", Average::of(w.sum(..) + x))))
        })?;
        Ok(steps_seen)
    };
    let runs = [run(true, false, false)?, run(false, true, false)?, run(false, false, true)?];
    assert!(runs.iter().all(|shares| shares.iter().sum::<f64>() <= 1.0 + 1e-9), "{runs:?}");
    let [data, start, device] = &runs;
    assert!(data[0] > 0.5 && start[1] > 0.5, "{runs:?}");
    // A step that is started while the device is busy may have to wait there, which is the start's share.
    assert!(device[2] > 0.1 + data[2].max(start[2]), "{runs:?}");
    Ok(())
}

/// The array that is not finite is named as the state has it.
#[test]
fn a_parameter_that_is_not_finite_is_named() -> Result<()> {
    setup();
    // The rate is infinite from the fourth step on.
    fn rate(step: &Array) -> Array {
        where_(step.less(3), 0.1f32, f32::INFINITY)
    }
    let state = TrainState::create(Linear::new(2, 1, &mut Rngs::new(0)), sgd(shardax_nn::Schedule::function(rate)))?;
    let step = jit(|state: TrainState<Linear, _>, (x, y): (Array, Array)| -> Result<_> {
        fn loss(model: Linear, x: &Array, y: &Array) -> Array {
            (model.forward(x) - y).square().mean(..)
        }
        let grads = grad(|model: Linear| loss(model, &x, &y)).call(state.params.clone())?;
        Ok((state.apply_gradients(grads)?, MultiMetric::new()))
    });
    let run = Trainer::new(20).quiet().check_finite().run(state, &mut data(), |state, batch| step.call((state, batch)));
    fails(run, &["after step 4 ", "`.params.kernel`"]);
    Ok(())
}

/// A number may be an array of the state, which the next step donates.
#[test]
fn numbers_of_a_donated_state_are_logged() -> Result<()> {
    setup();
    let step = jit(|w: Array| w + 1.0).donate_argnums([0]);
    for log_every in [1, 2] {
        let mut data = (4usize, |_| Ok(())).stream();
        let run = |w: Array, ()| {
            let w = step.call(w)?;
            Ok((w.clone(), MultiMetric::new().with("w", LastValue::of(&w))))
        };
        let trainer = Trainer::new(6).quiet().log_every(log_every).on_log(|step, values| {
            assert_eq!(values["w"], step as f64);
            Ok(Control::Continue)
        });
        assert_eq!(trainer.run(zeros(()), &mut data, run)?.item::<f32>()?, 6.0);
    }
    Ok(())
}

/// Each step ends only when the next one was started: reading its numbers before would be waiting for ever.
#[test]
fn numbers_are_read_while_the_next_step_is_under_way() -> Result<()> {
    setup();
    const STEPS: u64 = 6;
    let (started, alone) = (Arc::new((Mutex::new(0), Condvar::new())), Arc::new(AtomicU64::new(0)));
    let wait = {
        let (started, alone) = (started.clone(), alone.clone());
        move |args: &[shardax::HostArg<'_>], results: &mut [shardax::HostResult<'_>]| {
            let step = args[0].values::<f32>()?.map(|w| w as u64 + 1).max().unwrap_or(0);
            let (count, next) = &*started;
            let count = count.lock().expect("no panic");
            fn is_last(count: &mut u64, step: u64) -> bool {
                *count <= step && step < STEPS
            }
            // Long enough for a busy machine: only a failure waits so long.
            let (_guard, late) = next
                .wait_timeout_while(count, Duration::from_secs(20), |count: &mut u64| is_last(count, step))
                .expect("no panic");
            alone.fetch_add(late.timed_out().into(), Ordering::Relaxed);
            results[0].write([step as f32])
        }
    };
    let wait = pure_callback(wait, shape_dtype_struct((), DType::F32));
    let step = jit(move |w: Array| -> Result<(Array, MultiMetric)> {
        // A program that does little runs on the thread that starts it.
        let much = (ones([64, 64]) * &w).matmul(ones([64, 64])).sum(..);
        let w = wait.call(w + much * 0.0)?;
        Ok((w.clone(), MultiMetric::new().with("w", Average::of(w))))
    });
    let (mut logged, mut made) = (Vec::new(), Vec::new());
    let trainer = Trainer::new(STEPS)
        .log_every(1)
        .quiet()
        .on_log(|step, values| {
            logged.push((step, values["w"]));
            Ok(Control::Continue)
        })
        .hook(|at| {
            made.push(at.step);
            Ok(Control::Continue)
        });
    let end = trainer.run(zeros(()), &mut (4usize, |_| Ok(())).stream(), |w, ()| {
        *started.0.lock().expect("no panic") += 1;
        started.1.notify_all();
        step.call(w)
    })?;
    assert_eq!(end.item::<f32>()?, STEPS as f32);
    assert_eq!(alone.load(Ordering::Relaxed), 0, "steps waited in vain for the next to be started");
    assert_eq!(logged, (1..=STEPS).map(|step| (step, step as f64)).collect::<Vec<_>>());
    assert_eq!(made, (1..=STEPS).collect::<Vec<_>>());
    Ok(())
}

/// The numbers that were computed when a run ends are logged: where its data ends, a hook stops it, a step fails.
#[test]
fn the_last_numbers_are_logged_at_every_kind_of_end() -> Result<()> {
    setup();
    let folder = Folder::new();
    fn run(
        name: &str,
        examples: u64,
        stop: u64,
        fault: u64,
        folder: &Folder,
    ) -> Result<(Result<f32>, Vec<(u64, f64)>)> {
        let mut steps_seen = Vec::new();
        let step = |w: Array, x: Array| {
            if w.item::<f32>()? as u64 + 1 == fault {
                Err(shardax::Error::new(ErrorKind::Value, "no"))
            } else {
                Ok((&w + x, MultiMetric::new().with("w", Average::of(w + 1.0))))
            }
        };
        let mut data = (1usize, |_| Ok(array(1.0f32))).stream().epochs(examples);
        let end = Trainer::new(9)
            .log_every(2)
            .quiet()
            .logger(JsonLines::new(folder.join(name))?)
            .on_log(|step, values| {
                steps_seen.push((step, values["w"]));
                Ok(if step == stop { Control::Stop } else { Control::Continue })
            })
            .run(zeros(()), &mut data, step);
        let lines = JsonLines::read(folder.join(name))?;
        assert_eq!(lines.iter().map(|line| (line.step, line.values["w"])).collect::<Vec<_>>(), steps_seen);
        Ok::<_, shardax::Error>((end.and_then(|w| w.item::<f32>()), steps_seen))
    }
    let (end, seen) = run("all", 20, 0, 0, &folder)?;
    assert_eq!((end?, seen), (9.0, vec![(2, 1.5), (4, 3.5), (6, 5.5), (8, 7.5), (9, 9.0)]));
    for (examples, last) in [(4, vec![]), (5, vec![(5, 5.0)])] {
        let (end, seen) = run(&format!("data of {examples}"), examples, 0, 0, &folder)?;
        assert_eq!((end?, seen), (examples as f32, [vec![(2, 1.5), (4, 3.5)], last].concat()));
    }
    // The next step was under way.
    let (end, seen) = run("stop", 20, 4, 0, &folder)?;
    assert_eq!((end?, seen), (5.0, vec![(2, 1.5), (4, 3.5)]));
    let (end, seen) = run("fault", 20, 0, 5, &folder)?;
    fails(end, &["step 5: no"]);
    assert_eq!(seen, [(2, 1.5), (4, 3.5)]);
    Ok(())
}

/// A run whose data ends early is evaluated and saved as one that has done all steps.
#[test]
fn the_state_at_the_end_of_the_data_is_evaluated_and_saved() -> Result<()> {
    setup();
    let folder = Folder::new();
    let run = |evaluated: &mut Vec<f32>| {
        let options = CheckpointManagerOptions::new().save_interval_steps(2);
        let mut checkpoints = CheckpointManager::new(&folder.0, options)?;
        let mut data = (5usize, |_| Ok(array(1.0f32))).stream().epochs(1);
        let end = Trainer::new(9)
            .quiet()
            .checkpoints(&mut checkpoints)
            .evaluate_every(3, "test", |w: &Array| {
                evaluated.push(w.item()?);
                Ok(MultiMetric::new().with("w", LastValue::of(w)))
            })
            .run(zeros(()), &mut data, |w: Array, x| Ok((&w + x, MultiMetric::new())))?;
        Ok::<_, shardax::Error>((end.item::<f32>()?, checkpoints.all_steps()?))
    };
    let mut evaluated = Vec::new();
    assert_eq!(run(&mut evaluated)?, (5.0, vec![2, 4, 5]));
    assert_eq!(evaluated, [3.0, 5.0]);
    // Nothing is left to do.
    evaluated.clear();
    assert_eq!((run(&mut evaluated)?, evaluated.len()), ((5.0, vec![2, 4, 5]), 0));
    let metrics = |step: u64| Ok::<_, shardax::Error>(Checkpoint::open(folder.join(&step.to_string()))?.metrics());
    // Step 4 was not evaluated: the numbers of step 3 are those of another state.
    assert_eq!((metrics(4)?.get("test/w"), metrics(5)?.get("test/w")), (None, Some(&5.0)));
    Ok(())
}

/// A failed save is a warning, whether the manager saves in the background or not; the last one is an error.
#[test]
fn a_run_continues_after_a_save_that_fails() -> Result<()> {
    setup();
    for asynchronous in [false, true] {
        let folder = Folder::new();
        let options = CheckpointManagerOptions::new().enable_async_checkpointing(asynchronous);
        let mut checkpoints = CheckpointManager::new(&folder.0, options)?;
        // Another program writes these steps.
        for step in [2, 3] {
            std::fs::create_dir(folder.join(&format!("{step}.unfinished"))).expect("a folder");
        }
        let mut data = (5usize, |_| Ok(array(1.0f32))).stream().epochs(1);
        let trainer = Trainer::new(5).quiet().checkpoints(&mut checkpoints);
        let end = trainer.run(zeros(()), &mut data, |w: Array, x| Ok((w + x, MultiMetric::new())))?;
        assert_eq!((end.item::<f32>()?, checkpoints.all_steps()?), (5.0, vec![1, 4, 5]), "{asynchronous}");
    }
    Ok(())
}

/// A checkpoint of a step that is logged has the numbers of that step, by which the best is kept.
#[test]
fn a_checkpoint_has_the_numbers_of_its_step() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mut checkpoints =
        CheckpointManager::new(folder.join("run"), CheckpointManagerOptions::new().save_interval_steps(2))?;
    let step = jit(|w: Array| (&w + 1.0, MultiMetric::new().with("w", LastValue::of(w + 1.0))));
    let mut data = (4usize, |_| Ok(())).stream();
    let trainer = Trainer::new(6).log_every(1).quiet().checkpoints(&mut checkpoints);
    let _ = trainer.run(zeros(()), &mut data, |w, ()| step.call(w))?;
    for step in [2u64, 4, 6] {
        assert_eq!(Checkpoint::open(folder.join("run").join(step.to_string()))?.metrics()["w"], step as f64);
    }
    Ok(())
}

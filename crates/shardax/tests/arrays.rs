//! Where arrays lie: placement, shards, indexing of sharded arrays, many threads at once.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::setup;
use shardax::ErrorKind;
use shardax::prelude::*;

fn ints(x: &Array) -> Vec<i32> {
    x.to_vec().expect("int32 values")
}

fn spec(x: &Array) -> Result<PartitionSpec> {
    Ok(x.sharding()?.spec()?.clone())
}

// SPEC 16, 24, 27, 28, 29
#[test]
fn shards_of_an_array() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?;
    let x = device_put(&arange(0..96).reshape([8, 3, 4]), &NamedSharding::new(&mesh, P!["x"]))?;
    let shards = x.addressable_shards()?;
    assert_eq!(shards.len(), 8);
    for (i, shard) in shards.iter().enumerate() {
        assert_eq!((shard.data.shape(), shard.device.id(), shard.replica_id), (&[1, 3, 4][..], i, 0));
        assert_eq!(shard.index[0], i..i + 1);
        assert_eq!(ints(&shard.data), (i as i32 * 12..i as i32 * 12 + 12).collect::<Vec<_>>());
    }
    assert!(x.is_fully_addressable() && !x.is_fully_replicated() && x.committed());
    let whole = device_put(&x, &NamedSharding::new(&mesh, P![]))?;
    assert!(whole.is_fully_replicated());
    assert_eq!(whole.addressable_shards()?[7].replica_id, 7);
    // The same sharding gives the same array back.
    assert_eq!(device_put(&x, x.sharding()?)?.sharding()?, x.sharding()?);
    Ok(())
}

// SPEC 118, 119, 120, 121, 128
#[test]
fn indexing_keeps_what_it_can() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?;
    let x = arange(0..8 * 8 * 4).reshape([8, 8, 4]);
    let put = |spec| device_put(&x, &NamedSharding::new(&mesh, spec));
    let first = ints(&x)[..32].to_vec();

    let replicated = put(P![])?.get(0);
    assert_eq!((replicated.shape(), ints(&replicated)), (&[8, 4][..], first.clone()));
    assert_eq!(spec(&replicated)?, P![]);

    let inner = put(P![None, "x", None])?.get(0);
    assert_eq!((spec(&inner)?, ints(&inner)), (P!["x"], first.clone()));

    let leading = put(P!["x", None, None])?.get(0);
    assert_eq!((spec(&leading)?, ints(&leading)), (P![], first));
    assert!(leading.committed());
    Ok(())
}

#[test]
fn test_array_get_item() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x * 2).call(arange(0..32).reshape([8, 4]))?;
    assert_eq!(ints(&y.get(0)), [0, 2, 4, 6]);
    assert_eq!(ints(&y.get(-1)), [56, 58, 60, 62]);
    assert_eq!(y.iter().map(|row| ints(&row)[0]).collect::<Vec<_>>(), (0..8).map(|i| i * 8).collect::<Vec<_>>());
    // SPEC 124
    assert_eq!(ints(&y.addressable_shards()?[0].data.squeeze(0)), [0, 2, 4, 6]);
    Ok(())
}

#[test]
fn test_array_with_pmap_sharding_copy_without_round_trip() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x * 2).call(arange(0..32).reshape([8, 4]))?;
    let copy = y.copy()?;
    assert_eq!(copy.sharding()?, y.sharding()?);
    y.delete()?;
    assert_eq!(ints(&copy)[31], 62);
    Ok(())
}

// SPEC 31, 32, 34, 94
#[test]
fn copies_for_devices() -> Result<()> {
    setup();
    let all = devices()?;
    let parts: Vec<Array> = (0..8).map(|i| arange(i..i + 3)).collect();
    let x = device_put_sharded(&parts, &all)?;
    assert_eq!((x.shape(), ints(&x.addressable_data(5)?)), (&[8, 3][..], vec![5, 6, 7]));
    let (w, b) = replicate(&(arange(0..5), array(7)))?;
    assert_eq!((w.shape(), b.shape()), (&[8, 5][..], &[8][..]));
    let (w0, b0) = unreplicate(&(w, b))?;
    assert_eq!((ints(&w0), ints(&b0)), ((0..5).collect(), vec![7]));
    assert!(device_put_sharded(&parts[..3], &all).is_err());
    Ok(())
}

#[test]
fn arrays_from_parts() -> Result<()> {
    setup();
    let sharding = NamedSharding::new(&make_mesh([("i", 4), ("j", 2)])?, P!["i"]);
    let calls = AtomicUsize::new(0);
    let x = make_array_from_callback([8], DType::I32, &sharding, |index| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok(arange(index[0].start as i32..index[0].end as i32))
    })?;
    assert_eq!((ints(&x), calls.load(Ordering::SeqCst)), ((0..8).collect(), 4));
    let mut parts: Vec<Array> = x.addressable_shards()?.into_iter().map(|s| s.data).collect();
    parts.reverse();
    let again = make_array_from_single_device_arrays([8], &sharding, &parts)?;
    assert_eq!(ints(&again), ints(&x));
    assert!(make_array_from_single_device_arrays([8], &sharding, &parts[1..]).is_err());
    assert!(make_array_from_single_device_arrays([16], &sharding, &parts).is_err());
    Ok(())
}

/// Random numbers that are the same in every run (a linear congruential generator, its high bits).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    /// A spec that divides an array of this shape over the mesh.
    fn spec(&mut self, mesh: &Mesh, shape: &[usize]) -> PartitionSpec {
        let mut free: Vec<_> = mesh.axes().to_vec();
        let dims = shape.iter().map(|&n| {
            let mut chosen = Vec::new();
            let mut parts = 1;
            while !free.is_empty() && self.below(2) == 0 {
                let (name, size) = free.swap_remove(self.below(free.len()));
                if n % (parts * size) == 0 {
                    parts *= size;
                    chosen.push(name);
                }
            }
            shardax::sharding::IntoDimSpec::into_dim_spec(chosen.as_slice())
        });
        PartitionSpec::new(dims.collect::<Vec<_>>())
    }
}

/// Every element survives a long walk between random shardings.
#[test]
fn ten_thousand_reshards() -> Result<()> {
    setup();
    let mut random = Random(7);
    let all = devices()?;
    let meshes = [
        make_mesh([("a", 8)])?,
        make_mesh([("a", 4), ("b", 2)])?,
        make_mesh([("a", 2), ("b", 2), ("c", 2)])?,
        Mesh::new(all.iter().rev().cloned().collect(), [("a", 2), ("b", 4)])?,
        Mesh::new(all[2..6].to_vec(), [("a", 4)])?,
    ];
    for round in 0..20 {
        let shape: Vec<usize> = (0..1 + random.below(3)).map(|_| [8, 4, 16, 2, 0, 1][random.below(6)]).collect();
        let count: usize = shape.iter().product();
        let want: Vec<i32> = (0..count as i32).collect();
        let mut x = Array::from_vec(want.clone(), &shape)?;
        for step in 0..500 {
            let to: Sharding = match random.below(8) {
                0 => (&all[random.below(8)]).into(),
                _ => {
                    let mesh = &meshes[random.below(meshes.len())];
                    NamedSharding::new(mesh, random.spec(mesh, &shape)).into()
                }
            };
            x = device_put(&x, &to)?;
            assert_eq!(x.sharding()?, to);
            if step % 10 == 0 {
                assert_eq!(ints(&x), want, "round {round} step {step} {to}");
            }
        }
        assert_eq!(ints(&x), want);
    }
    Ok(())
}

/// How long the threads run: a few seconds in the tests; `SHARDAX_STRESS_SECONDS` for more.
fn stress_time() -> Duration {
    let seconds = std::env::var("SHARDAX_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    Duration::from_secs(seconds)
}

fn resident_mib() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) / 256
}

/// Sixteen threads call, donate, delete and reshard the same arrays: right results or clean errors, no hang, no leak.
#[test]
fn many_threads_share_arrays() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let sharded = NamedSharding::new(&mesh, P!["i"]);
    let x = device_put(&arange(0..64).reshape([8, 8]), &sharded)?;
    let slot = std::sync::Mutex::new(x.clone());
    let bump = pmap(|x: Array| x + 0).donate_argnums([0]);
    let total = pmap(|x: Array| psum(x, "i")).axis_name("i");
    let want = ints(&total.call(&x)?);
    let until = Instant::now() + stress_time();
    let rounds = AtomicUsize::new(0);
    let start = resident_mib();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (slot, bump, total, want, sharded, mesh, rounds) =
                (&slot, &bump, &total, &want, &sharded, &mesh, &rounds);
            scope.spawn(move || {
                let mut n = thread;
                while Instant::now() < until {
                    n += 1;
                    rounds.fetch_add(1, Ordering::Relaxed);
                    let x = slot.lock().unwrap_or_else(|e| e.into_inner()).clone();
                    let outcome = match n % 5 {
                        0 => bump.call(&x).map(|y| *slot.lock().unwrap_or_else(|e| e.into_inner()) = y),
                        1 => total.call(&x).and_then(|y| y.to_vec::<i32>()).map(|y| assert_eq!(y, *want)),
                        2 => device_put(&x, &NamedSharding::new(mesh, P![None, "i"]))
                            .and_then(|y| y.to_vec::<i32>())
                            .map(|y| assert_eq!(y[..3], [0, 1, 2])),
                        3 => x.copy().and_then(|y| y.delete()),
                        _ => x.to_vec::<i32>().map(|y| assert_eq!(y[63], 63)),
                    };
                    if let Err(e) = outcome {
                        // The array was donated by another thread between taking and using it.
                        let text = e.to_string();
                        assert!(
                            e.kind() == ErrorKind::Deleted || text.contains("delete") || text.contains("donat"),
                            "{text}"
                        );
                        let mut current = slot.lock().unwrap_or_else(|e| e.into_inner());
                        if current.is_deleted() {
                            let fresh = device_put(&arange(0..64).reshape([8, 8]), sharded).expect("a fresh array");
                            *current = fresh;
                        }
                    }
                }
            });
        }
    });
    let grown = resident_mib().saturating_sub(start);
    println!("{} rounds, resident memory grew by {grown} MiB", rounds.load(Ordering::Relaxed));
    assert!(rounds.load(Ordering::Relaxed) > 50);
    assert!(grown < 256, "resident memory grew by {grown} MiB");
    Ok(())
}

//! Arrays on devices: placement, shards, indexing of sharded arrays, many threads at once.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::values::{ints, spec};
use common::{quick::setup, resident_mib};
use shardax::prelude::*;
use shardax::{ErrorKind, dlpack};

#[test]
fn shards_of_an_array() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let x = device_put(&arange(0..96).reshape([8, 3, 4]), &NamedSharding::new(&mesh, P!["x"]))?;
    let shards = x.addressable_shards()?;
    assert_eq!(shards.len(), 8);
    for (i, shard) in shards.iter().enumerate() {
        assert_eq!((shard.data.shape(), shard.device.id(), shard.replica_id), (&[1, 3, 4][..], i, 0));
        assert_eq!(shard.index[0], i..i + 1);
        assert_eq!(ints(&shard.data), (i as i32 * 12..i as i32 * 12 + 12).collect::<Vec<_>>());
    }
    assert!(x.is_fully_addressable() && !x.is_fully_replicated() && x.committed());
    let replicated = device_put(&x, &NamedSharding::new(&mesh, P![]))?;
    assert!(replicated.is_fully_replicated());
    assert_eq!(replicated.addressable_shards()?[7].replica_id, 7);
    // With the same sharding, the same array is returned.
    assert_eq!(device_put(&x, x.sharding()?)?.sharding()?, x.sharding()?);
    Ok(())
}

#[test]
fn indexing_keeps_the_sharding_of_other_dimensions() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let x = arange(0..8 * 8 * 4).reshape([8, 8, 4]);
    fn place(spec: PartitionSpec, x: &Array, mesh: &Mesh) -> Result<Array> {
        device_put(x, &NamedSharding::new(mesh, spec))
    }
    let first = ints(&x)[..32].to_vec();

    let replicated = place(P![], &x, &mesh)?.get(0);
    assert_eq!((replicated.shape(), ints(&replicated)), (&[8, 4][..], first.clone()));
    assert_eq!(spec(&replicated)?, P![]);

    let inner = place(P![None, "x", None], &x, &mesh)?.get(0);
    assert_eq!((spec(&inner)?, ints(&inner)), (P!["x"], first.clone()));

    let leading = place(P!["x", None, None], &x, &mesh)?.get(0);
    assert_eq!((spec(&leading)?, ints(&leading)), (P![], first));
    assert!(leading.committed());
    Ok(())
}

/// JAX: `testArrayGetItem`.
#[test]
fn entry_of_a_pmap_result_is_its_row() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x * 2).call(arange(0..32).reshape([8, 4]))?;
    assert_eq!(ints(&y.get(0)), [0, 2, 4, 6]);
    assert_eq!(ints(&y.get(-1)), [56, 58, 60, 62]);
    assert_eq!(y.iter().map(|row| ints(&row)[0]).collect::<Vec<_>>(), (0..8).map(|i| i * 8).collect::<Vec<_>>());
    assert_eq!(ints(&y.addressable_shards()?[0].data.squeeze(0)), [0, 2, 4, 6]);
    Ok(())
}

/// JAX: `test_array_with_pmap_sharding_copy_without_round_trip`.
#[test]
fn copy_keeps_the_sharding_in_its_own_buffers() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x * 2).call(arange(0..32).reshape([8, 4]))?;
    let copy = y.copy()?;
    assert_eq!(copy.sharding()?, y.sharding()?);
    y.delete()?;
    assert_eq!(ints(&copy)[31], 62);
    Ok(())
}

#[test]
fn copies_for_devices() -> Result<()> {
    setup();
    let all_devices = devices()?;
    let parts: Vec<Array> = (0..8).map(|i| arange(i..i + 3)).collect();
    let x = device_put_sharded(&parts, &all_devices)?;
    assert_eq!((x.shape(), ints(&x.addressable_data(5)?)), (&[8, 3][..], vec![5, 6, 7]));
    let (w, b) = replicate(&(arange(0..5), array(7)))?;
    assert_eq!((w.shape(), b.shape()), (&[8, 5][..], &[8][..]));
    let (w0, b0) = unreplicate(&(w, b))?;
    assert_eq!((ints(&w0), ints(&b0)), ((0..5).collect(), vec![7]));
    assert!(device_put_sharded(&parts[..3], &all_devices).is_err());
    Ok(())
}

#[test]
fn arrays_from_parts() -> Result<()> {
    setup();
    let sharding = NamedSharding::new(&make_mesh([("i", 4), ("j", 2)])?.auto(), P!["i"]);
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
    let all_devices = devices()?;
    // Meshes of one to three axes, with devices in reversed order, and with only some of the devices.
    let meshes = [
        make_mesh([("a", 8)])?.auto(),
        make_mesh([("a", 4), ("b", 2)])?.auto(),
        make_mesh([("a", 2), ("b", 2), ("c", 2)])?.auto(),
        Mesh::new(all_devices.iter().rev().cloned().collect(), [("a", 2), ("b", 4)])?,
        Mesh::new(all_devices[2..6].to_vec(), [("a", 4)])?,
    ];
    for round in 0..20 {
        let shape: Vec<usize> = (0..1 + random.below(3)).map(|_| [8, 4, 16, 2, 0, 1][random.below(6)]).collect();
        let count: usize = shape.iter().product();
        let want: Vec<i32> = (0..count as i32).collect();
        let mut x = Array::from_vec(want.clone(), &shape)?;
        for step in 0..500 {
            let to: Sharding = match random.below(8) {
                0 => (&all_devices[random.below(8)]).into(),
                _ => {
                    let mesh = &meshes[random.below(meshes.len())];
                    NamedSharding::new(mesh, random.spec(mesh, &shape)).into()
                }
            };
            x = device_put(&x, &to)?;
            assert_eq!(x.sharding()?, to);
            // Reading all values takes longer than moving them.
            if step % 10 == 0 {
                assert_eq!(ints(&x), want, "round {round} step {step} {to}");
            }
        }
        assert_eq!(ints(&x), want);
    }
    Ok(())
}

/// The time that the threads run: a few seconds in the tests; `SHARDAX_TEST_STRESS_SECONDS` for more.
fn stress_time() -> Duration {
    let seconds = std::env::var("SHARDAX_TEST_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    Duration::from_secs(seconds)
}

/// The state that sixteen threads share: an array that is created and deleted, and functions that are compiled before
/// and meanwhile.
struct Shared {
    mesh: Mesh,
    slot: std::sync::Mutex<Array>,
    rounds: AtomicUsize,
    /// The bytes of a sharded function's gradient, as it was before there were threads.
    slope: Vec<u8>,
}

fn small() -> Array {
    arange(0..64).reshape([8, 8])
}

/// The gradient of products and sums over the mesh, by matrix and weights.
fn slope(mesh: &Mesh) -> Result<Vec<u8>> {
    let loss = |x: Array, w: Array| -> Result<Array> {
        fn part(x: Array, w: Array) -> Array {
            pmean((x.matmul(w).sin() * 0.1).sum(..), "i")
        }
        shard_map(part, mesh).in_specs((P!["i"], P![])).out_specs(P![]).call((x, w))
    };
    let x = device_put(&small().astype(DType::F32).sin(), &NamedSharding::new(mesh, P!["i"]))?;
    let w = random::normal(&random::key(3), [8, 8]);
    let (dx, dw) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>))).call((x, w))?;
    Ok([dx.to_bytes()?, dw.to_bytes()?].concat())
}

impl Shared {
    fn slot(&self) -> std::sync::MutexGuard<'_, Array> {
        self.slot.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One thing that a thread does with the shared array; what else is wrong than its absence panics.
    fn round(&self, n: usize) -> Result<()> {
        let x = self.slot().clone();
        let over = |spec| NamedSharding::new(&self.mesh, spec);
        match n % 9 {
            0 => *self.slot() = pmap(|x: Array| x + 0).donate_argnums([0]).call(&x)?,
            1 => {
                let sums = pmap(|x: Array| psum(x, "i")).axis_name("i").call(&x)?;
                assert_eq!(sums.to_vec::<i32>()?[..3], [224, 232, 240]);
            }
            2 => assert_eq!(device_put(&x, &over(P![None, "i"]))?.to_vec::<i32>()?[..3], [0, 1, 2]),
            3 => x.copy()?.delete()?,
            4 => assert_eq!(x.to_vec::<i32>()?[63], 63),
            // A shape that is new to the caches, again and again.
            5 => {
                let size = 1 + n / 9 % 60;
                let y = jit(|x: Array| (x * 2).sum(..)).call(arange(0..size as i32))?;
                assert_eq!(y.item::<i32>()?, (size * (size - 1)) as i32);
            }
            // An error, with its values, and nothing after it changed.
            6 => {
                let error = (&x + arange(0..7)).to_vec::<i32>().err().expect("shapes that do not fit");
                assert!(error.kind() == ErrorKind::Deleted || error.to_string().contains("[7]"), "{error}");
            }
            7 => assert_eq!(device_put(&device_put(&x, &over(P![]))?, &over(P!["i"]))?.to_vec::<i32>()?[9], 9),
            _ => assert_eq!(slope(&self.mesh)?, self.slope, "the bits of a gradient changed"),
        }
        Ok(())
    }

    /// Rounds until the time is over. Where another thread donated or deleted the array, there is a fresh one.
    fn run(&self, thread: usize, until: Instant) {
        for n in thread.. {
            if Instant::now() >= until {
                break;
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let Err(error) = self.round(n) else { continue };
            let text = error.to_string();
            let gone = error.kind() == ErrorKind::Deleted || text.contains("delete") || text.contains("donat");
            assert!(gone, "{text}");
            let mut current = self.slot();
            if current.is_deleted() {
                *current = device_put(&small(), &NamedSharding::new(&self.mesh, P!["i"])).expect("a fresh array");
            }
        }
    }
}

/// Sixteen threads call, donate, delete and reshard the same arrays, compile new shapes and meet errors: right results,
/// to the bit, or clean errors; no hang; and a resident size that is flat once all is warm.
#[test]
fn many_threads_share_arrays() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let x = device_put(&small(), &NamedSharding::new(&mesh, P!["i"]))?;
    let slope = slope(&mesh)?;
    let shared = Shared { mesh, slot: std::sync::Mutex::new(x), rounds: AtomicUsize::new(0), slope };
    let (start, time) = (resident_mib(), stress_time());
    let until = Instant::now() + time;
    let mut warm = start;
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let shared = &shared;
            scope.spawn(move || shared.run(thread, until));
        }
        std::thread::sleep(time / 2);
        warm = resident_mib();
    });
    let (end, rounds) = (resident_mib(), shared.rounds.load(Ordering::Relaxed));
    println!("{rounds} rounds; resident: {start} MiB at first, {warm} at half the time, {end} at the end");
    assert!(rounds > 50);
    // Allows for compiled programs, and for memory that the allocator does not return.
    assert!(end.saturating_sub(start) < 96, "resident memory grew from {start} to {end} MiB");
    let warmed = time >= Duration::from_secs(60);
    assert!(
        !warmed || end.saturating_sub(warm) < 32,
        "resident memory grew from {warm} to {end} MiB when all was warm"
    );
    Ok(())
}

/// An array of `ndarray`, which a DLPack tensor keeps.
struct Matrix(ndarray::Array2<f32>);

impl dlpack::HostBytes for Matrix {
    fn bytes(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(self.0.as_slice().expect("a row-major array"))
    }
}

/// The address of a tensor's bytes.
fn address(t: &dlpack::Tensor) -> Option<usize> {
    t.bytes_in_place().map(|bytes| bytes.as_ptr() as usize)
}

#[test]
fn dlpack_round_trips_keep_bits() -> Result<()> {
    setup();
    // From `ndarray` into an array, and back.
    let rows = ndarray::Array2::from_shape_fn((3, 4), |(i, j)| (i * 4 + j) as f32);
    let owner = std::sync::Arc::new(Matrix(rows.clone()));
    let tensor = dlpack::Tensor::from_host(owner.clone(), dlpack::ElementType::F32, &[3, 4])?;
    let x = dlpack::from_dlpack(tensor)?;
    assert_eq!(x.to_ndarray::<f32>()?, rows.into_dyn());
    drop(x);
    block_until_ready(&zeros(1))?;

    // Every dtype keeps its bits.
    let bytes: Vec<u8> = (0..32).map(|i| i * 7 % 2).collect();
    let mut dtypes = 0;
    for dtype in DType::ALL {
        let Ok(x) = Array::from_bytes(&bytes[..2 * dtype.byte_size()], dtype, &[2, 1]) else { continue };
        let Ok(tensor) = dlpack::to_dlpack(&x) else { continue };
        assert_eq!(tensor.bytes_in_place().map(<[u8]>::to_vec), Some(x.to_bytes()?), "{dtype}");
        let y = dlpack::from_dlpack(tensor)?;
        assert_eq!((y.type_name(), y.to_bytes()?), (x.type_name(), x.to_bytes()?));
        dtypes += 1;
    }
    assert_eq!(dtypes, 21);

    // A sharded array is gathered, which is a copy.
    let split = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let z = device_put(&arange(0..16), &split)?;
    assert_eq!(dlpack::to_dlpack(&z)?.bytes_in_place().map(<[u8]>::to_vec), Some(z.to_bytes()?));
    Ok(())
}

/// The memory is shared, and neither dropped nor donated while the tensor exists.
#[test]
fn dlpack_shares_memory() -> Result<()> {
    setup();
    let x = ones([64, 64]);
    let (one, two) = (dlpack::to_dlpack(&x)?, dlpack::to_dlpack(&x)?);
    assert_eq!((address(&one), one.is_read_only()), (address(&two), true));
    let y = dlpack::from_dlpack(one)?;
    assert_eq!(address(&dlpack::to_dlpack(&y)?), address(&two));
    drop((x, two));
    assert_eq!(y.sum(..).item::<f32>()?, 4096.0);

    // It stays if the array is deleted, as in JAX, and cannot be donated.
    let (x, start) = (ones([64, 64]), std::time::Instant::now());
    let tensor = dlpack::to_dlpack(&x)?;
    let donated = jit(|x: Array| x + 1).donate_argnums(0).call(&x).expect_err("the tensor exists").to_string();
    assert!(donated.contains("another library shares the memory") && donated.contains("arrays.rs"), "{donated}");
    x.delete()?;
    assert!(x.to_vec::<f32>().is_err());
    assert_eq!(dlpack::from_dlpack(tensor)?.sum(..).item::<f32>()?, 4096.0);
    assert!(start.elapsed().as_secs() < 9);
    Ok(())
}

#[test]
fn dlpack_errors() -> Result<()> {
    setup();
    fn error(x: Array) -> String {
        dlpack::to_dlpack(&x).unwrap_err().to_string()
    }
    assert!(error(random::key(0)).contains("random keys key<fry>[] have no counterpart in DLPack"));
    assert!(error(array_of([1], DType::I4)).contains("DLPack has no type for arrays of s4"));
    let gone = ones(2);
    gone.delete()?;
    assert!(error(gone).contains("deleted"));
    struct Bytes(Vec<u8>);
    impl dlpack::HostBytes for Bytes {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }
    let odd = dlpack::Tensor::from_host(std::sync::Arc::new(Bytes(vec![2])), dlpack::ElementType::Pred, &[1])?;
    assert!(dlpack::from_dlpack(odd).unwrap_err().to_string().contains("is 2, which is not a bool"));
    Ok(())
}

/// JAX: `testRankPromotion`.
#[test]
fn ranks_are_promoted_as_the_rule_says() -> Result<()> {
    use shardax::numpy::{average, choose, cross, geomspace, linspace, logical_and, nanquantile, quantile};
    use shardax::scipy::integrate::trapezoid;
    use shardax::scipy::special::xlogy;
    use shardax::{RankPromotion, numpy_rank_promotion};
    setup();
    let (x, y) = (ones([2, 3]), ones(3));
    let strict = numpy_rank_promotion(RankPromotion::Raise);
    let add = jit(|(x, y): (Array, Array)| x + y);
    let error = add.call((x.clone(), y.clone())).unwrap_err().to_string();
    let says = "Operands could not be broadcast together for add on shapes (2, 3) (3,)";
    assert!(error.contains(says) && error.contains("arrays.rs"), "{error}");
    for result in [&x * &y, maximum(&y, &x), x.pow(&y), logical_and(&x, &y), xlogy(&x, &y)] {
        let error = result.check().unwrap_err().to_string();
        assert!(error.contains("Operands could not be broadcast together for"), "{error}");
    }
    // Scalars and equal ranks are not concerned.
    for result in [&x * 2, &x + y.sum(..), &x * y.expand_dims(0)] {
        result.check()?;
    }
    // Neither are other functions. JAX computes these too, except for `geomspace`, `linspace`, `trapezoid` and
    // `standardize`.
    let place = array([0, 1, 0]);
    let results = [
        shardax::nn::softmax(&x, -1),
        x.std(0),
        where_(x.greater(0), &x, &y),
        where_(y.greater(0), &x, &x),
        average(&x, &y, 1),
        choose(&place, [&x, &x], shardax::numpy::IndexMode::Clip),
        cross(&x, &y),
        geomspace(&x, &y * 2, 4),
        linspace(&x, &y, 4),
        quantile(&x, &y, 0),
        nanquantile(&x, &y, 0),
        trapezoid(&x, &y, 1),
        x.at(0).set(&y),
        x.at(..).add(&y),
        x.sum(over(0).mask(y.greater(0))),
        random::multivariate_normal(random::key(0), &y, eye(3), 2),
        random::gamma(random::key(0), &y, [2, 3]),
        shardax::nn::StandardizeOptions::new().mean(&y).standardize(&x, 1),
    ];
    for (i, result) in results.iter().enumerate() {
        result.check().map_err(|error| error.help(format!("result {i}")))?;
    }
    drop(strict);
    let _ = add.call((x.clone(), y.clone()))?;
    let _warned = numpy_rank_promotion(RankPromotion::Warn);
    let _ = add.call((x, y))?;
    assert!(config::update("numpy_rank_promotion", "never").unwrap_err().to_string().contains("allow, warn or raise"));
    Ok(())
}

//! Reports of compiled programs about communication between their devices.

use shardax::stages::Collectives;

use super::*;

fn collectives_of_row(x: &Array) -> Result<Collectives> {
    let first = jit(|x: Array| x.get(0));
    let compiled = first.lower(x)?.compile()?;
    assert_eq!(compiled.call(x)?.to_vec::<f32>()?, x.to_vec::<f32>()?[..32]);
    compiled.collectives()
}

#[test]
fn indexing_and_communication() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let x = float_range(256).reshape([8, 8, 4]);
    let replicated = device_put(&x, split(&mesh, P![None, None, None]))?;
    assert!(collectives_of_row(&replicated)?.is_empty());
    assert!(replicated.get(0).is_fully_replicated());

    let inner = device_put(&x, split(&mesh, P![None, "x", None]))?;
    assert!(collectives_of_row(&inner)?.is_empty());
    assert_eq!(inner.get(0).sharding()?.spec()?, &P!["x"]);

    let leading = device_put(&x, split(&mesh, P!["x", None, None]))?;
    let report = collectives_of_row(&leading)?;
    // The row, from the device that has it.
    assert_eq!(report.to_string(), "all-reduce over 'x', 128 bytes on each device, ×1");
    assert!(leading.get(0).is_fully_replicated());
    Ok(())
}

fn update(p: Params, grads: Params) -> Result<Params> {
    tree::map2(|p, g| p - g * 0.1, p, grads)
}

/// One all-reduce for loss and gradients together: XLA combines them.
#[test]
fn one_all_reduce_in_a_data_parallel_step() -> Result<()> {
    setup();
    let p = Params { w: zeros(5), b: zeros(()) };
    let step = pmap(|p: Params, x: Array, y: Array| -> Result<(Params, Array)> {
        let (value, grads) = value_and_grad(loss).call((p.clone(), x, y))?;
        Ok((update(p, pmean(grads, "batch"))?, pmean(value, "batch")))
    })
    .axis_name("batch")
    .in_axes((None, 0, 0))
    .out_axes(None);
    let bytes_of = |batch: usize| -> Result<(usize, String)> {
        let report = step.lower((&p, ones([8, batch, 5]), ones([8, batch])))?.compile()?.collectives()?;
        assert_eq!(report.count_of(CollectiveKind::AllReduce), report.count());
        Ok((report.count(), report.to_string()))
    };
    let text = "all-reduce over 'batch', 28 bytes on each device, ×1";
    assert_eq!(bytes_of(2)?, (1, text.to_owned()));
    // As much for a larger batch.
    assert_eq!(bytes_of(64)?, (1, text.to_owned()));

    // The compiler's own partitioning of the same step.
    let mesh = make_mesh([("batch", 8)])?.auto();
    let auto = jit(|p: Params, x: Array, y: Array| -> Result<(Params, Array)> {
        let (value, grads) = value_and_grad(loss).call((p.clone(), x, y))?;
        Ok((update(p, grads)?, value))
    })
    .in_shardings((split(&mesh, P![]), split(&mesh, P!["batch"]), split(&mesh, P!["batch"])))
    .out_shardings(split(&mesh, P![]));
    let report = auto.lower((&p, ones([16, 5]), ones(16)))?.compile()?.collectives()?;
    assert_eq!(report.to_string(), text);
    Ok(())
}

/// Collectives inside and outside of a loop over micro-batches.
#[test]
fn gradient_accumulation_communicates_once() -> Result<()> {
    setup();
    let p = Params { w: zeros(5), b: zeros(()) };
    // The two forms differ only in the place of the mean: after the loop, or in every iteration.
    let accumulate = |once: bool| {
        pmap(move |p: Params, x: Array, y: Array| -> Result<Params> {
            let zero = Params { w: zeros(5), b: zeros(()) };
            let (sum, _) = scan(
                |sum: Params, (x, y): (Array, Array)| -> Result<(Params, ())> {
                    let grads = grad(loss).call((p.clone(), x, y))?;
                    let grads = if once { grads } else { pmean(grads, "batch") };
                    Ok((tree::map2(|a, b| a + b, sum, grads)?, ()))
                },
                zero,
                (x, y),
            )?;
            let sum = if once { pmean(sum, "batch") } else { sum };
            update(p.clone(), tree::map(|g| g / 4, sum)?)
        })
        .axis_name("batch")
        .in_axes((None, 0, 0))
        .out_axes(None)
    };
    let args = (&p, ones([8, 4, 2, 5]), ones([8, 4, 2]));
    let report = accumulate(true).lower(args.clone())?.compile()?.collectives()?;
    assert_eq!(report.to_string(), "all-reduce over 'batch', 24 bytes on each device, ×1");
    let report = accumulate(false).lower(args)?.compile()?.collectives()?;
    assert_eq!(report.to_string(), "all-reduce over 'batch', 24 bytes on each device, ×1 in a loop, 4 runs");
    Ok(())
}

#[test]
fn collectives_name_their_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let f = shard_map(
        |x: Array| {
            let gathered = all_gather_tiled(x, "i", 0);
            let scattered = psum_scatter_tiled(gathered, "j", 0);
            let moved = ppermute(scattered, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]);
            let swapped = all_to_all_tiled(moved, "i", 0, 0);
            pmax(swapped, ("i", "j"))
        },
        &mesh,
    )
    .in_specs(P![("i", "j")])
    .out_specs(P![]);
    let report = f.lower(float_range(64))?.compile()?.collectives()?;
    // The order of independent collectives is the compiler's, so the lines are sorted.
    let mut lines: Vec<String> = report.iter().map(|c| c.to_string()).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "all-gather over 'i', 128 bytes on each device, ×1",
            "all-reduce over 'i', 'j', 64 bytes on each device, ×1",
            "all-to-all over 'i', 64 bytes on each device, ×1",
            "collective-permute over 'i', 64 bytes on each device, ×1",
            "reduce-scatter over 'j', 128 bytes on each device, ×1",
        ]
    );
    assert_eq!(jit(|x: Array| x + 1).lower(float_range(4))?.compile()?.collectives()?.to_string(), "no communication");
    Ok(())
}

#[test]
fn shards_are_sliced_without_a_gather() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let x = device_put(&float_range(256).reshape([8, 8, 4]), split(&mesh, P![None, "x"]))?;
    let rows = jit(|x: Array| (0..8).map(|i| x.get(i)).collect::<Vec<_>>());
    let lowered = rows.lower(&x)?;
    assert!(!lowered.as_text().contains("gather"), "{}", lowered.as_text());
    let compiled = lowered.compile()?;
    assert!(!compiled.as_text()?.contains("gather") && compiled.collectives()?.is_empty());
    assert_eq!(compiled.call(&x)?[7].sharding()?.spec()?, &P!["x"]);

    // Whole on every device first: then the first row is there.
    let replicated_x = device_put(&x, split(&mesh, P![]))?;
    assert!(collectives_of_row(&replicated_x)?.is_empty());
    let replicated = pmap(|x: Array| pmean(x, "i")).axis_name("i").out_axes(None).call(ones([8, 8, 4]))?;
    assert!(replicated.is_fully_replicated() && replicated.shape() == [8, 4]);
    Ok(())
}

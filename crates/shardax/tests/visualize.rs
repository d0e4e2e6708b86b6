//! Pictures of shardings, compared with the pictures that JAX draws (tools/golden/visualize.py).

mod common;

use std::process::Command;

use common::setup;
use common::snapshot::snapshot;
use shardax::ErrorKind;
use shardax::prelude::*;

fn over(sizes: &[usize], spec: PartitionSpec) -> Result<NamedSharding> {
    let mesh = make_mesh(["i", "j"].into_iter().zip(sizes.iter().copied()))?;
    Ok(NamedSharding::new(&mesh, spec))
}

/// The spec's entries as Python writes them in a tuple that is printed without its trailing comma.
fn entries(spec: &PartitionSpec) -> String {
    spec.to_string().replace(",)", ")").trim_start_matches('P').to_owned()
}

#[test]
fn pictures_of_shardings_equal_jax() -> Result<()> {
    setup();
    // One and two dimensions, split over none, one and both axes in either order, and shapes that are too wide for a
    // line.
    let cases: [(&[usize], PartitionSpec, &[usize]); 20] = [
        (&[8], P!["i"], &[8]),
        (&[8], P![], &[8]),
        (&[8], P!["i"], &[8000]),
        (&[4, 2], P!["j"], &[8]),
        (&[4, 2], P![("i", "j")], &[16]),
        (&[4, 2], P![("j", "i")], &[16]),
        (&[1], P!["i"], &[3]),
        (&[8], P!["i"], &[8, 8]),
        (&[8], P!["i"], &[1024, 16]),
        (&[4, 2], P!["i", "j"], &[8, 16]),
        (&[4, 2], P!["j", "i"], &[8, 16]),
        (&[4, 2], P!["i"], &[8, 16]),
        (&[4, 2], P![None, "j"], &[8, 16]),
        (&[4, 2], P![], &[8, 16]),
        (&[2, 4], P!["i", "j"], &[4, 4]),
        (&[2, 4], P!["j", "i"], &[1024, 16]),
        (&[2, 2], P!["i", "j"], &[6, 4]),
        (&[1], P!["i"], &[8, 8]),
        (&[4, 2], P!["j", None], &[8, 30]),
        (&[8], P![], &[8, 1000]),
    ];
    let mut texts = Vec::new();
    for (sizes, spec, shape) in cases {
        let picture = visualize_sharding(shape, over(sizes, spec.clone())?)?;
        texts.push(format!("{sizes:?} {} {shape:?}\n{picture}", entries(&spec)));
    }
    snapshot("visualize_jax", &texts.join("\n"));
    Ok(())
}

#[test]
fn wide_arrays_keep_the_names_of_devices() -> Result<()> {
    setup();
    for sizes in [[8, 1], [4, 2], [2, 4]] {
        let picture = visualize_sharding(&[8, 1000], over(&sizes, P!["j", "i"])?)?;
        assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
        assert!((0..8).all(|i| picture.contains(&format!("CPU {i} "))), "{picture}");
    }
    // Whatever the shape, there is a picture.
    for shape in [&[0][..], &[0, 3], &[3, 0], &[0, 0], &[1, 1], &[1, usize::MAX], &[usize::MAX, 1]] {
        assert!(visualize_sharding(shape, over(&[2], P![])?)?.contains("CPU 0,1"), "{shape:?}");
        assert!(visualize_sharding_svg(shape, over(&[2], P![])?)?.contains("CPU 0,1"), "{shape:?}");
    }
    let single = visualize_sharding(&[4], &devices()?[5])?;
    assert_eq!(single, "┌───────┐\n│ CPU 5 │\n└───────┘\n");
    Ok(())
}

#[test]
fn colours_and_svg() -> Result<()> {
    setup();
    let sharding = over(&[2, 2], P!["i", "j"])?;
    let plain = visualize_sharding(&[4, 8], &sharding)?;
    let color = visualize_sharding_color(&[4, 8], &sharding)?;
    snapshot("visualize_color", &color.replace('\x1b', "ESC"));
    // Without its colours it is the plain one; every device has a colour of its own.
    let mut bare = color.clone();
    let mut codes = std::collections::BTreeSet::new();
    while let Some((before, rest)) = bare.clone().split_once('\x1b') {
        let (code, after) = rest.split_once('m').expect("a colour ends in m");
        codes.insert(code.to_owned());
        bare = format!("{before}{after}");
    }
    assert_eq!((bare, codes.len()), (plain, 5), "four colours, and none");
    snapshot("visualize_svg", &visualize_sharding_svg(&[4, 8], &sharding)?);
    snapshot("visualize_svg_vector", &visualize_sharding_svg(&[8], over(&[4, 2], P!["j"])?)?);
    Ok(())
}

#[test]
fn visualize_sharding_rejects_other_ranks() -> Result<()> {
    setup();
    let sharding = over(&[2, 2], P!["i"])?;
    for shape in [&[][..], &[2, 2, 2]] {
        let error = visualize_sharding(shape, &sharding).err().expect("one or two dimensions");
        assert!(error.to_string().contains("only works for shapes with 1 and 2 dimensions"), "{error}");
        assert_eq!((error.kind(), error.location().map(|l| l.file())), (ErrorKind::Value, Some(file!())));
    }
    assert_eq!(visualize_sharding_svg(&[3], &sharding).err().map(|e| e.kind()), Some(ErrorKind::Indivisible));
    let x = ones(4);
    x.delete()?;
    assert_eq!(visualize_array_sharding(&x).err().map(|e| e.kind()), Some(ErrorKind::Deleted));
    let traced = jit(|x: Array| -> Result<Array> { visualize_array_sharding(&x).map(|()| x) }).call(ones(4));
    assert!(traced.is_err_and(|e| e.to_string().contains("is not known while its function is traced")));
    Ok(())
}

#[test]
#[ignore = "run by another test"]
fn printed() -> Result<()> {
    setup();
    visualize_array_sharding(&device_put(&ones([8, 2]), over(&[2], P!["i"])?)?)
}

#[test]
fn where_standard_output_is_no_terminal_there_are_no_colours() -> std::io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let out = command.args(["--exact", "printed", "--ignored", "--nocapture", "-q"]).output()?;
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("│ CPU 0 │\n") && !out.contains("\x1b["), "{out}");
    Ok(())
}

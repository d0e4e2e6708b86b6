//! Names and lines of operations. JAX 0.10.2 has the same names for the same functions.

use std::collections::BTreeSet;

use crate::common::quick::setup;
use shardax::prelude::*;

/// The names in a lowered text, with the lines that they annotate.
fn locations(text: &str) -> Vec<(String, u32)> {
    fn scope_of(line: &str) -> Option<(String, u32)> {
        let (_, rest) = line.split_once("= loc(\"")?;
        let (name, place) = rest.split_once("\"(\"")?;
        let line = place.trim_end_matches(')').split(':').nth(1)?;
        Some((name.to_owned(), line.parse().ok()?))
    }
    text.lines().filter_map(scope_of).collect()
}

fn names(text: &str) -> BTreeSet<String> {
    locations(text).into_iter().map(|(name, _)| name).collect()
}

fn scoped(x: Array) -> Array {
    let _outer = named_scope("outer");
    let y = {
        let _inner = named_scope("inner");
        x.sin() // SINE
    };
    let y = y * 2;
    drop(_outer);
    y + 1
}

fn total(x: Array) -> Array {
    scoped(x).sum(..)
}

#[track_caller]
fn check<F: Function<(Array,)>>(f: F, x: Array, want: &[&str]) {
    let text = jit(f).lower(x).and_then(|l| l.as_text_with_debug_info()).expect("it can be lowered");
    let message = names(&text);
    for name in want {
        assert!(message.contains(*name), "{name} is not among {message:#?}");
    }
}

#[test]
fn names_are_jaxs_under_every_transformation() -> Result<()> {
    setup();
    fn x() -> Array {
        arange(0..4).astype(DType::F32)
    }
    fn rows() -> Array {
        ones([3, 4])
    }
    // JAX writes the expected names for the same program.
    check(scoped, x(), &["jit(scoped)/outer/inner/sin", "jit(scoped)/outer/mul", "jit(scoped)/add"]);
    check(
        grad(total),
        x(),
        &[
            "jit(total)/jvp(outer)/inner/cos",
            "jit(total)/transpose(jvp(outer))/inner/mul",
            "jit(total)/transpose(jvp(outer))/mul",
        ],
    );
    check(
        vmap(scoped),
        rows(),
        &["jit(scoped)/vmap(outer)/inner/sin", "jit(scoped)/vmap(outer)/mul", "jit(scoped)/vmap()/add"],
    );
    check(
        vmap(grad(total)),
        rows(),
        &["jit(total)/vmap(jvp(outer))/inner/cos", "jit(total)/vmap(transpose(jvp(outer)))/inner/mul"],
    );
    check(
        |x: Array| jvp(scoped, x.clone(), x),
        x(),
        &["jit(lambda)/jvp(outer)/inner/cos", "jit(lambda)/jvp(outer)/inner/mul", "jit(lambda)/jvp()/add"],
    );
    check(
        |x: Array| {
            let _outside = named_scope("outside");
            grad(total).call(x)
        },
        x(),
        &["jit(lambda)/outside/jvp(outer)/inner/cos", "jit(lambda)/outside/transpose(jvp(outer))/mul"],
    );
    check(
        |x: Array| jit(scoped).call(x),
        x(),
        &["jit(lambda)/jit(scoped)/outer/inner/sin", "jit(lambda)/jit(scoped)/add"],
    );
    check(
        grad(|x: Array| Ok::<_, shardax::Error>(jit(scoped).call(x)?.sum(..))),
        x(),
        &["jit(lambda)/jvp(jit(scoped))/outer/inner/cos", "jit(lambda)/transpose(jvp(jit(scoped)))/outer/mul"],
    );
    Ok(())
}

fn looped(x: Array) -> Result<Array> {
    let _loop = named_scope("loop");
    Ok(scan_n(|c: Array| (scoped(c), ()), x, 3)?.0)
}

#[test]
fn names_go_into_loops_branches_and_devices() -> Result<()> {
    setup();
    fn x() -> Array {
        arange(0..8).astype(DType::F32)
    }
    // JAX writes the expected names for the same program.
    check(
        looped,
        x(),
        &["jit(looped)/loop/while/body/outer/inner/sin", "jit(looped)/loop/while/body/add", "jit(looped)/loop/scan"],
    );
    check(
        grad(|x: Array| Ok::<_, shardax::Error>(looped(x)?.sum(..))),
        x(),
        &[
            "jit(lambda)/jvp(loop)/while/body/outer/inner/cos",
            "jit(lambda)/transpose(jvp(loop))/while/body/outer/inner/mul",
        ],
    );
    check(
        |x: Array| while_loop(|c: Array| c.sum(..).less(3), scoped, x),
        x(),
        &["jit(lambda)/while/body/outer/inner/sin", "jit(lambda)/while/cond/lt", "jit(lambda)/while"],
    );
    check(
        |x: Array| {
            let _c = named_scope("c");
            cond(x.sum(..).greater(0), scoped, |x: Array| x, x)
        },
        x(),
        &["jit(lambda)/c/cond/branch_1_fun/outer/inner/sin", "jit(lambda)/c/cond"],
    );
    let mesh = make_mesh([("i", 8)])?;
    let blocks = shard_map(scoped, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]);
    check(
        move |x: Array| {
            let _sm = named_scope("sm");
            blocks.call(x)
        },
        x(),
        &["outer/inner/sin", "add", "jit(lambda)/sm/shard_map"],
    );
    Ok(())
}

/// The optimized program says which operation an instruction was made from, and where that was asked for.
#[test]
fn compiled_programs_name_lines() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let blocks = shard_map(scoped, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]);
    let source = include_str!("scopes.rs");
    let sine = 1 + source.lines().position(|line| line.ends_with("// SINE")).expect("the line is marked");
    for (text, name) in [
        (jit(scoped).lower(ones([4]))?.compile()?.as_text()?, "jit(scoped)/outer/inner/sin"),
        (jit(grad(total)).lower(ones([4]))?.compile()?.as_text()?, "jit(total)/jvp(outer)/inner/cos"),
        (jit(blocks).lower(ones([8]))?.compile()?.as_text()?, "jit(scoped)/shard_map/outer/inner/sin"),
        (jit(looped).lower(ones([8]))?.compile()?.as_text()?, "jit(looped)/loop/while/body/outer/inner/sin"),
    ] {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        let want = format!("op_name={name:?} source_file={:?} source_line={sine}", file!());
        assert!(line.contains(&want), "{line}\n{want}");
    }
    Ok(())
}

/// Names of operations are not part of compiled programs.
#[test]
fn names_and_lines_do_not_compile_again() -> Result<()> {
    setup();
    fn text(name: &'static str) -> Result<(String, String)> {
        let f = move |x: Array| {
            let _scope = named_scope(name);
            x.tanh() * 41
        };
        let lowered = jit(f).lower(ones([5]))?;
        Ok::<_, shardax::Error>((lowered.as_text().to_owned(), lowered.as_text_with_debug_info()?))
    }
    // Without debug information the texts are equal, so the compilation cache finds the same program.
    let (one, one_named) = text("one")?;
    let (two, two_named) = text("a \"strange\" \\ näme\n")?;
    assert_eq!(one, two);
    assert!(!one.contains("loc") && one_named.contains("jit(lambda)/one/tanh"), "{one_named}");
    assert!(two_named.contains(r"jit(lambda)/a \22strange\22 \\ n\C3\A4me\0A/tanh"), "{two_named}");
    let run = |name: &'static str| {
        jit(move |x: Array| {
            let _scope = named_scope(name);
            x.tanh() * 43
        })
    };
    // The second function is traced, because it is another closure, but not compiled.
    let (first, second) = (run("one"), run("a \"strange\" \\ näme\n"));
    let _ = first.call(ones([6]))?;
    let (result, counts) = shardax::count(|| second.call(ones([6])));
    let _ = result?;
    assert_eq!((counts.traces, counts.compilations), (1, 0));
    Ok(())
}

/// A guard that outlives its function names nothing outside of it.
#[test]
fn a_forgotten_scope_ends_with_its_function() -> Result<()> {
    setup();
    let f = jit(|x: Array| {
        std::mem::forget(named_scope("forgotten"));
        x.sin()
    });
    let g = jit(move |x: Array| Ok::<_, shardax::Error>(f.call(x)?.cos()));
    let message = names(&g.lower(ones([2]))?.as_text_with_debug_info()?);
    assert!(message.contains("jit(lambda)/jit(lambda)/forgotten/sin"), "{message:?}");
    assert!(message.contains("jit(lambda)/cos"), "{message:?}");
    Ok(())
}

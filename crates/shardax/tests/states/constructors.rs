//! Arrays created from host data with every kind of sharding.

use super::*;
use crate::common::quick::one_of;

type Make = fn(&[f32], &NamedSharding) -> Result<Array>;

const MAKERS: [(&str, Make); 6] = [
    ("from_slice_on", |values, to| Array::from_slice_on(values, &[8, 8], to)),
    ("from_bytes_on", |values, to| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        Array::from_bytes_on(&bytes, DType::F32, &[8, 8], to)
    }),
    ("device_put", |values, to| device_put(&Array::from_slice(values, &[8, 8])?, to)),
    ("make_array_from_callback", |values, to| {
        let all = Array::from_slice(values, &[8, 8])?;
        make_array_from_callback([8, 8], DType::F32, to, |part| {
            fn range(d: usize, part: &smallvec::SmallVec<[std::ops::Range<usize>; 4]>) -> std::ops::Range<i64> {
                part[d].start as i64..part[d].end as i64
            }
            Ok(all.get((range(0, part), range(1, part))))
        })
    }),
    ("make_array_from_process_local_data", |values, to| {
        make_array_from_process_local_data(to, &Array::from_slice(values, &[8, 8])?)
    }),
    ("reshard", |values, to| {
        let x = reshard(Array::from_slice(values, &[8, 8])?, to.spec().clone());
        x.check().map(|()| x)
    }),
];

#[test]
fn constructors_over_shardings() -> Result<()> {
    let mut number = 0;
    for axes in [[("x", 2), ("y", 4)], [("x", 1), ("y", 8)]] {
        let (mesh, _guard) = mesh(axes);
        let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let splits = [P![], P!["x"], P![None, "y"], P!["y", "x"], P![("x", "y")], P![None, ("y", "x")]];
        for split in splits {
            let used: Vec<_> = split.all_axes().collect();
            let free: Vec<_> = mesh.axis_names().filter(|name| !used.contains(name)).collect();
            // Axes that split no dimension can be unreduced or reduced.
            let mut specs = vec![split.clone()];
            specs.extend(
                free.iter().flat_map(|name| [split.clone().unreduced([*name]), split.clone().reduced([*name])]),
            );
            specs.push(split.clone().unreduced(free.clone()));
            for spec in specs {
                let to = NamedSharding::new(&mesh, spec.clone());
                // A slice has one of the functions for each sharding.
                number += 1;
                for (name, make) in MAKERS.into_iter().skip(number % one_of(6)).step_by(one_of(6)) {
                    let x = make(&values, &to).map_err(|e| e.context(format!("{name} to {spec}")))?;
                    assert!(
                        x.sharding()?.is_equivalent_to(&to.clone().into(), 2),
                        "{name} to {spec}: {:?}",
                        x.sharding()?
                    );
                    assert_eq!(host(&reshard(x, P![])), values, "{name} to {spec}");
                }
            }
        }
    }
    Ok(())
}

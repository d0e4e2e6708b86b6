//! Functions of one and two numbers, and their first and second derivatives, compared with values of 700 bits
//! (`tools/golden/functions.py`): on logarithmic grids of both signs, next to poles, in tails.

#[path = "../common/quick.rs"]
#[allow(dead_code)]
mod quick;

mod functions;
mod known;
mod measure;
mod nans;
mod page;
mod sweep;
mod values;

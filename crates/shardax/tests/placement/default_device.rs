//! The device of new arrays.

use shardax::default_device;

use super::*;

/// New arrays, operations and compiled functions use the default device. Committed arrays stay on their device.
#[test]
fn uncommitted_arrays_use_the_default_device() -> Result<()> {
    setup();
    let all_devices = local_devices()?;
    let f = jit(|x: Array| x * 2 + 1);
    let (near, far) = (ones(3), device_put(&ones(3), &all_devices[5])?);
    assert_eq!(f.call(&near)?.devices()?, all_devices[..1]);
    {
        let _third = default_device(&all_devices[3])?;
        for x in [
            ones(3),
            array([1.5f32]),
            Array::from_vec(vec![1i32; 4], &[4])?,
            arange(0..4) + 1,
            random::uniform(random::key(0), 2),
        ] {
            assert_eq!(x.devices()?, all_devices[3..4]);
            assert!(!x.committed());
        }
        // Uncommitted arguments on other devices are moved.
        assert_eq!(f.call(&near)?.devices()?, all_devices[3..4]);
        assert_eq!((&near + 1).devices()?, all_devices[3..4]);
        assert_eq!(grad(|x: Array| x.square().sum(..)).call(&near)?.devices()?, all_devices[3..4]);
        assert_eq!(f.call(&far)?.devices()?, all_devices[5..6]);
        assert_eq!((ones(3) + &far).devices()?, all_devices[5..6]);
        {
            let _fourth = default_device(&all_devices[4])?;
            assert_eq!(f.call(ones(3))?.devices()?, all_devices[4..5]);
        }
        assert_eq!(f.call(ones(3))?.devices()?, all_devices[3..4]);
        let elsewhere = std::thread::spawn(|| ones(3).devices()).join().expect("a thread");
        assert_eq!(elsewhere?, all_devices[..1]);
    }
    let (again, counts) = shardax::count(|| f.call(&near));
    assert_eq!(again?.devices()?, all_devices[..1]);
    assert_eq!(counts, shardax::Counts::default());
    assert_eq!((&near + 1).devices()?, all_devices[..1]);
    Ok(())
}

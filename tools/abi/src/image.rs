//! How an image of the hypervisor gets the mark by which it may take another's place.

use abi::upgrade::{MAGIC, MARK_AT, Mark, checksum};
use zerocopy::IntoBytes as _;

/// Writes the mark into a file that has room for it; what it has read of the versions stays, the rest is
/// filled in. `false` where there is none.
#[must_use]
pub fn seal(mut mark: Mark, file: &mut [u8]) -> bool {
    let Some((place, rest)) = file
        .get_mut(MARK_AT..)
        .and_then(|rest| rest.split_at_mut_checked(size_of::<Mark>()))
        .filter(|(place, _)| place.starts_with(&MAGIC))
    else {
        return false;
    };
    mark.magic = MAGIC;
    mark.checksum = checksum(rest);
    mark.file_bytes = (MARK_AT + place.len() + rest.len()) as u64;
    place.copy_from_slice(mark.as_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::upgrade::Misfit;

    fn image() -> Vec<u8> {
        let mut file = vec![7; 1001];
        file[MARK_AT..MARK_AT + 8].copy_from_slice(&MAGIC);
        let mark = Mark {
            oldest: 2,
            newest: 3,
            memory_bytes: 5000,
            ..Mark::default()
        };
        assert!(seal(mark, &mut file));
        file
    }

    #[test]
    fn an_image_is_known_by_its_mark_and_fits_by_version_and_size() {
        let mark = Mark::of(&image()).unwrap();
        assert_eq!((mark.file_bytes, mark.memory_bytes), (1001, 5000));
        assert_eq!(mark.fits(1, 6000), Err(Misfit::Version));
        assert_eq!(mark.fits(2, 6000), Ok(()));
        assert_eq!(mark.fits(3, 6000), Ok(()));
        assert_eq!(mark.fits(4, 6000), Err(Misfit::Version));
        assert_eq!(mark.fits(3, 5000), Err(Misfit::TooLarge));
    }

    #[test]
    fn an_image_that_was_changed_or_cut_is_none() {
        let file = image();
        for cut in 0..file.len() {
            assert_eq!(Mark::of(&file[..cut]), Err(Misfit::NoImage), "{cut}");
        }
        // The boot loader's header is not covered, nor are the versions, which say what they say.
        for at in MARK_AT + size_of::<Mark>()..file.len() {
            let mut other = file.clone();
            other[at] ^= 0x10;
            assert_eq!(Mark::of(&other), Err(Misfit::NoImage), "{at}");
        }
        assert!(!seal(Mark::default(), &mut [0; 500]));
        assert!(!seal(Mark::default(), &mut [0; 100]));
    }
}

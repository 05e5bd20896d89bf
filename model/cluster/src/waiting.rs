//! Frames or messages that wait, in a ring of bytes.

use heapless::Deque;

/// What waits, oldest first: `MAX` at most, each in one piece.
#[derive(Debug)]
pub struct Waiting<B, const MAX: usize> {
    bytes: B,
    /// Where each begins and ends.
    places: Deque<[u32; 2], MAX>,
}

impl<B: AsMut<[u8]>, const MAX: usize> Waiting<B, MAX> {
    /// Makes room in these bytes, of which the first 4 GiB are used.
    pub const fn of(bytes: B) -> Self {
        let places = Deque::new();
        Self { bytes, places }
    }

    /// Returns room for so many bytes, not 0, which is to be filled; `None` where there is none.
    pub fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let (bytes, all) = (u32::try_from(bytes).ok()?, self.bytes.as_mut());
        let len = u32::try_from(all.len()).unwrap_or(u32::MAX);
        // Behind the latest; or before the oldest, if that is behind the latest or there is no room at the end.
        let [start, end] = match (self.places.front(), self.places.back()) {
            (Some([first, _]), Some([_, last])) if last <= first => [*last, *first],
            (Some([first, _]), Some([_, last])) if len - last < bytes => [0, *first],
            (_, Some([_, last])) => [*last, len],
            (_, None) => [0, len],
        };
        if bytes == 0 || bytes > end - start {
            return None;
        }
        self.places.push_back([start, start + bytes]).ok()?;
        all.get_mut(start as usize..(start + bytes) as usize)
    }

    /// Adds a message behind the number of its sender; `false` where there is no room.
    pub fn push(&mut self, from: u8, message: &[u8]) -> bool {
        let Some([first, rest @ ..]) = self.place(1 + message.len()) else {
            return false;
        };
        *first = from;
        rest.copy_from_slice(message);
        true
    }

    /// Returns the oldest.
    pub fn first(&mut self) -> Option<&mut [u8]> {
        let [start, end] = self.places.front()?.map(|at| at as usize);
        self.bytes.as_mut().get_mut(start..end)
    }

    /// Drops the oldest.
    pub fn pop(&mut self) {
        self.places.pop_front();
    }
}

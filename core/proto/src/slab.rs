//! Values by numbers that are never given twice.

/// The number of a value in a [`Slab`]: its place there, and how many values have had this place before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    index: u32,
    generation: u32,
}

impl Id {
    /// The number as one integer.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The number of that integer, which may be of no value.
    pub fn from_u64(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Entry<V> {
    generation: u32,
    value: Option<V>,
}

#[derive(Debug)]
pub(crate) struct Slab<V> {
    entries: Vec<Entry<V>>,
    free: Vec<u32>,
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<V> Slab<V> {
    pub fn insert(&mut self, value: V) -> Id {
        while let Some(index) = self.free.pop() {
            if let Some(entry) = self.entries.get_mut(index as usize) {
                entry.value = Some(value);
                return Id { index, generation: entry.generation };
            }
        }
        self.entries.push(Entry { generation: 0, value: Some(value) });
        Id { index: (self.entries.len() - 1) as u32, generation: 0 }
    }

    fn entry(&mut self, id: Id) -> Option<&mut Entry<V>> {
        self.entries.get_mut(id.index as usize).filter(|entry| entry.generation == id.generation)
    }

    pub fn get(&self, id: Id) -> Option<&V> {
        let entry = self.entries.get(id.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == id.generation)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        self.entry(id)?.value.as_mut()
    }

    pub fn remove(&mut self, id: Id) -> Option<V> {
        let entry = self.entry(id)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(value)
    }

    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.entries.into_iter().filter_map(|entry| entry.value)
    }

    pub fn ids(&self) -> Vec<Id> {
        self.iter().map(|(id, _)| id).collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Id, &V)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let id = Id { index: index as u32, generation: entry.generation };
            entry.value.as_ref().map(|value| (id, value))
        })
    }
}

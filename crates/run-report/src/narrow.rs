//! Tables with fewer columns: those that differ or decide, and the rest.

use super::sheet::{Cell, Column, Sheet, Value};

impl Sheet {
    /// Without the columns of which `left_out` is true, given their cells.
    pub fn without(&self, left_out: impl Fn(&Column, &[&Cell]) -> bool) -> Self {
        let is_kept = |&n: &usize| {
            let cells: Vec<&Cell> = self.rows.iter().map(|row| &row[n]).collect();
            !left_out(&self.columns[n], &cells)
        };
        self.select(&(0..self.columns.len()).filter(is_kept).collect::<Vec<_>>())
    }

    /// Without the columns for programs.
    pub fn for_readers(&self) -> Self {
        self.without(|column, _| column.for_programs)
    }

    fn select(&self, kept: &[usize]) -> Self {
        Self {
            columns: kept.iter().map(|&n| self.columns[n].clone()).collect(),
            rows: self.rows.iter().map(|row| kept.iter().map(|&n| row[n].clone()).collect()).collect(),
            ..self.clone()
        }
    }

    /// The table in at most `limit` columns of a terminal, if that is possible, and one of what it
    /// leaves out, if anything. Columns without a value, and those of text that are equal in all
    /// rows, are in neither; the latter are a remark.
    pub fn narrow(&self, limit: usize) -> (Self, Option<Self>) {
        let mut narrow = self.for_readers().without_alike();
        let mut dropped: Vec<String> = Vec::new();
        while narrow.width() > limit {
            let highest = narrow.columns.iter().filter(|column| column.rank > 0).max_by_key(|c| c.rank);
            let Some(key) = highest.map(|column| column.key.clone()) else { break };
            narrow = narrow.without(|column, _| column.key == key);
            dropped.push(key);
        }
        // A row of the rest is known by its text columns.
        let rest = self
            .without_alike()
            .without(|column, _| column.for_programs || (column.numeric && !dropped.contains(&column.key)));
        (narrow, (!dropped.is_empty()).then_some(Self { remarks: Vec::new(), ..rest }))
    }

    /// The columns that differ between rows, with the others as a remark.
    fn without_alike(&self) -> Self {
        let equal = |column: usize| {
            let first = self.rows.first().map(|row| row[column].shown());
            let empty = first.is_some() && self.rows.iter().all(|row| row[column].value == Value::Nothing);
            // Measurements stay, even if they happen to be equal.
            let differs = self.columns[column].spread
                || self.rows.len() < 2
                || self.rows.iter().any(|row| Some(row[column].shown()) != first);
            empty || !differs
        };
        let (left_out, kept): (Vec<usize>, Vec<usize>) = (0..self.columns.len()).partition(|&n| equal(n));
        let common = left_out
            .iter()
            .filter(|&&n| self.rows[0][n].value != Value::Nothing && !self.columns[n].for_programs);
        let common: Vec<String> =
            common.map(|&n| format!("{} {}", self.columns[n].title, self.rows[0][n].shown())).collect();
        let mut sheet = self.select(&kept);
        if !common.is_empty() {
            sheet.remarks.insert(0, format!("In all rows: {}.", common.join(", ")));
        }
        sheet
    }
}

//! Which integers are ids: 7 and 8 are as different as 7 and 900.

/// Last words of names of columns that hold ids.
const NAMES: &str = "ad ads advertiser album app area article artist banner book brand browser campaign category channel \
    city code country creative customer device document domain film genre gid id ids ip item keyword \
    member merchant movie page postcode product publisher query region seller session shop site sku song \
    store tag uid user username video visitor zip zipcode";

/// Words before them that make an amount of the column: the number of items is no item.
const AMOUNTS: [&str; 10] = ["avg", "count", "max", "mean", "min", "n", "nr", "num", "number", "total"];

/// Distinct integers up to which a number is a category as well.
const MAX_FEW: usize = 128;

/// Rows a value from which on more distinct integers are a category as well: amounts seldom repeat so often.
const MIN_ROWS_A_VALUE: usize = 8;

/// Whether the name of a column of integers says that they are ids.
pub(crate) fn is_id(name: &str) -> bool {
    let words = words(name);
    let lower = name.to_ascii_lowercase();
    let is_name = |word: &str| NAMES.split(' ').any(|known| known == word);
    let is_known = words.last().is_some_and(|last| is_name(last) || last.strip_suffix("id").is_some_and(is_name));
    let is_amount = words.iter().any(|word| AMOUNTS.contains(&word.as_str()));
    is_known && !is_amount || lower.ends_with("id") && lower.len() <= 8 || lower.contains("hash")
}

/// Whether integers come so often that a row of a table can be learned for each: they are a category besides a number.
pub(crate) fn is_category(rows: usize, distinct: usize) -> bool {
    distinct <= MAX_FEW || distinct * MIN_ROWS_A_VALUE <= rows
}

/// Whether a number that is a category as well has so many values that ids are likely.
pub(crate) fn is_either(distinct: usize) -> bool {
    distinct > MAX_FEW
}

/// `adItem_ID` is "ad", "item", "id".
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        let starts = !letter.is_alphanumeric() || letter.is_uppercase() && was_lower;
        if starts {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase();
        let word = words.last_mut().expect("there is a first");
        word.extend(letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()));
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_integers_are() {
        for name in "user userID adItem item-id Campaign movieid customerid ip url_hash ID zip.code".split(' ') {
            assert!(is_id(name), "{name}");
        }
        for name in "price user_age num_items n_user total_item pages_read fnlwgt humidity ".split(' ') {
            assert!(!is_id(name), "{name}");
        }
    }

    #[test]
    fn integers_that_come_again_and_again_are_a_category_as_well() {
        assert!(is_category(200, 128) && is_category(20_000, 500));
        assert!(!is_category(20_000, 5_000));
        assert!(is_either(500) && !is_either(100));
    }
}

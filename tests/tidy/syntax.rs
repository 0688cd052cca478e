//! The modules of each crate as the compiler sees them: their files, what they define and what they import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Ident, Item, UseTree};
use zagros_tests::{read, repository, short};

/// A module's path from the crate's root: `["tier", "evict"]`.
pub(crate) type ModulePath = Vec<String>;

/// A crate by its modules. What is compiled for tests alone is not part of it.
pub(crate) struct CrateSyntax {
    pub(crate) modules: BTreeMap<ModulePath, ModuleSyntax>,
}

pub(crate) struct ModuleSyntax {
    pub(crate) file: PathBuf,
    pub(crate) defines: BTreeSet<String>,
    pub(crate) types: Vec<String>,
    pub(crate) imports: Vec<UsedName>,
    /// Paths in its code: `["page", "write"]` of a call `page::write(…)`.
    pub(crate) paths: BTreeSet<Vec<String>>,
}

#[derive(Clone, Debug)]
pub(crate) struct UsedName {
    /// As written: `["crate", "tier", "Evict"]`; `["super", "*"]` for a glob.
    pub(crate) path: Vec<String>,
    /// The name by which the module knows it.
    pub(crate) name: String,
}

/// Every crate of the workspace that has a root file below `src/`.
pub(crate) fn crates() -> Vec<CrateSyntax> {
    let workspace: toml_edit::DocumentMut = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let members = workspace["workspace"]["members"].as_array().expect("members is an array");
    let folders = members.iter().map(|folder| repository().join(folder.as_str().expect("a member is text")));
    let roots = folders.flat_map(|folder| ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root)));
    roots.filter(|root| root.is_file()).map(|root| CrateSyntax::read(&root)).collect()
}

pub(crate) fn product_files() -> BTreeSet<PathBuf> {
    let modules = crates().into_iter().flat_map(|syntax| syntax.modules.into_values());
    modules.map(|module| module.file).filter(|file| !short(file).starts_with("tests/")).collect()
}

impl CrateSyntax {
    fn read(root: &Path) -> Self {
        let mut read = Self { modules: BTreeMap::new() };
        let folder = root.parent().expect("a root file lies in a folder");
        read.add_file(Vec::new(), root, folder);
        read
    }

    /// Reads a module's file. `folder` is where the files of its child modules lie.
    fn add_file(&mut self, path: ModulePath, file: &Path, folder: &Path) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add_items(path, file, folder, &parsed.items);
    }

    fn add_items(&mut self, path: ModulePath, file: &Path, folder: &Path, items: &[Item]) {
        let items: Vec<&Item> = items.iter().filter(|item| !is_for_tests(attributes(item))).collect();
        for item in &items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let (child, below) = ([path.clone(), vec![name.clone()]].concat(), folder.join(&name));
            match &module.content {
                Some((_, items)) => self.add_items(child, file, &below, items),
                None => {
                    let flat = folder.join(format!("{name}.rs"));
                    let file = if flat.is_file() { flat } else { below.join("mod.rs") };
                    self.add_file(child, &file, &below);
                }
            }
        }
        let defined = items.iter().filter_map(|item| definition(item)).map(ToString::to_string);
        let types = items.iter().filter_map(|item| type_name(item)).map(ToString::to_string).collect();
        let (mut imports, mut paths) = (Vec::new(), BTreeSet::new());
        for item in &items {
            match item {
                Item::Use(import) => add_imports(&mut imports, &mut Vec::new(), &import.tree),
                Item::Mod(_) => {}
                item => add_paths(item.to_token_stream(), &mut paths),
            }
        }
        let module = ModuleSyntax { file: file.to_owned(), defines: defined.collect(), types, imports, paths };
        self.modules.insert(path, module);
    }

    /// `None` for what lies in another crate, and for a module itself.
    pub(crate) fn file_of(&self, from: &[String], import: &[String]) -> Option<&Path> {
        self.resolve(from, import, 0)
    }

    /// As [`Self::file_of`], of a path in the module's code, which may begin with an imported name.
    pub(crate) fn file_of_path(&self, from: &[String], path: &[String]) -> Option<&Path> {
        match self.modules[from].imports.iter().find(|import| import.name == path[0]) {
            Some(import) => self.file_of(from, &[&import.path[..], &path[1..]].concat()),
            None => self.file_of(from, path),
        }
    }

    fn resolve(&self, from: &[String], import: &[String], depth: usize) -> Option<&Path> {
        let (mut module, rest) = self.start(from, import)?;
        let mut rest = rest.iter();
        while let Some(name) = rest.next() {
            let child = [module.clone(), vec![name.clone()]].concat();
            if self.modules.contains_key(&child) {
                module = child;
                continue;
            }
            let here = &self.modules[&module];
            if here.defines.contains(name) || name == "*" {
                return Some(&here.file);
            }
            // A chain of re-exports is short.
            let reexport = here.imports.iter().find(|import| import.name == *name && depth < 8)?;
            let whole: Vec<String> = reexport.path.iter().chain(rest).cloned().collect();
            return self.resolve(&module, &whole, depth + 1);
        }
        None
    }

    /// The module in which a path starts, and what of the path is left.
    fn start<'a>(&self, from: &[String], import: &'a [String]) -> Option<(ModulePath, &'a [String])> {
        let first = import.first()?;
        match first.as_str() {
            "crate" => Some((Vec::new(), &import[1..])),
            "self" => Some((from.to_vec(), &import[1..])),
            "super" => {
                let ups = import.iter().take_while(|part| *part == "super").count();
                Some((from[..from.len().checked_sub(ups)?].to_vec(), &import[ups..]))
            }
            child if self.modules.contains_key(&[from, &[child.to_owned()]].concat()) => Some((from.to_vec(), import)),
            _ => None,
        }
    }
}

/// Adds each path of two or more names.
fn add_paths(tokens: TokenStream, paths: &mut BTreeSet<Vec<String>>) {
    let (mut path, mut colons) = (Vec::new(), 0);
    for token in tokens {
        match token {
            TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
            TokenTree::Ident(name) => add_path(paths, std::mem::replace(&mut path, vec![name.to_string()])),
            TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                colons += 1;
                continue;
            }
            TokenTree::Group(group) => {
                add_path(paths, std::mem::take(&mut path));
                add_paths(group.stream(), paths);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => add_path(paths, std::mem::take(&mut path)),
        }
        colons = 0;
    }
    add_path(paths, path);
}

fn add_path(paths: &mut BTreeSet<Vec<String>>, path: Vec<String>) {
    if path.len() > 1 {
        paths.insert(path);
    }
}

fn add_imports(imports: &mut Vec<UsedName>, path: &mut Vec<String>, tree: &UseTree) {
    let mut add = |path: &[String], last: String, name: String| {
        let path = if last == "self" { path.to_vec() } else { [path, &[last]].concat() };
        imports.push(UsedName { path, name });
    };
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            add_imports(imports, path, &part.tree);
            path.pop();
        }
        UseTree::Name(name) => add(path, name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => add(path, name.ident.to_string(), name.rename.to_string()),
        UseTree::Glob(_) => add(path, "*".to_owned(), "*".to_owned()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| add_imports(imports, path, tree)),
    }
}

pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |list: &syn::MetaList| list.tokens.to_string() == "test";
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(is_test)
    })
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

fn definition(item: &Item) -> Option<&Ident> {
    match item {
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Const(item) => Some(&item.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::TraitAlias(item) => Some(&item.ident),
        item => type_name(item),
    }
}

fn type_name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Struct(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

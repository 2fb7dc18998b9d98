# What a program is made of, as CycloneDX 1.5: reads what `cargo metadata` prints, for one platform.
# $time: when it was made. Development dependencies are left out; what only builds the program is not.

def uses: [.deps[] | select(any(.dep_kinds[]; .kind != "dev")) | .pkg] | unique;
def purl: "pkg:cargo/\(.name)@\(.version)";
def licence: (.license // "NOASSERTION") | gsub(" */ *"; " OR ");
def component($type): {
    type: $type, "bom-ref": purl, name, version, purl: purl,
    licenses: [{expression: licence}]
};

.resolve.root as $root
| (.packages | map({key: .id, value: .}) | from_entries) as $packages
| (.resolve.nodes | map({key: .id, value: uses}) | from_entries) as $uses
| ({known: [$root], new: [$root]}
    | until(.new == [];
        .known as $known
        | ([.new[] | $uses[.][]] | unique - $known) as $new
        | {known: ($known + $new), new: $new})
    | .known | sort) as $known
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {timestamp: $time, component: ($packages[$root] | component("application"))},
    components: [$known[] | select(. != $root) | $packages[.] | component("library")],
    dependencies: [$known[] | {ref: ($packages[.] | purl), dependsOn: [$uses[.][] | $packages[.] | purl]}]
}

"""The UCI regression sets that the Gaussian process literature uses: sizes, aliases, checksums.

Checksums are of the files in the public collection https://github.com/treforevans/uci_datasets
(MIT licence) at ``REVISION``.
"""

from __future__ import annotations

from typing import NamedTuple

REVISION = "f0737523712fe66a1640e4b980b927e8490b58eb"


class Pinned(NamedTuple):
    """What one file must be: size in bytes and SHA-256."""

    size: int
    sha256: str


class UCISet(NamedTuple):
    """One data set of the collection.

    Attributes:
        n, d: rows and inputs.
        mask: the ten published test masks.
        data: the numbers; None for the five largest sets, which are not downloaded because no
            checksum of them is pinned.
        parts: files that hold the rows, one after the other.
        aliases: names used in papers.
        notes: traps.
    """

    n: int
    d: int
    mask: Pinned
    data: Pinned | None = None
    parts: tuple[str, ...] = ("data.csv.gz",)
    aliases: tuple[str, ...] = ()
    notes: str = ""


UCI_SETS: dict[str, UCISet] = {
    "3droad": UCISet(
        n=434874,
        d=3,
        mask=Pinned(537858, "05a88da30f7a47a02b68a421d32a9c14515572c7d263607b1177081bfe236d95"),
    ),
    "airfoil": UCISet(
        n=1503,
        d=5,
        mask=Pinned(1946, "dbba6121fb8f900350fe10d724b54faa2b67fcc7bfc3409cf7add717281609e4"),
        data=Pinned(12936, "1cce82516ac9e564fba52f55d817eb147fc39085f5d7b958ad15b92f4207f23e"),
    ),
    "autompg": UCISet(
        n=392,
        d=7,
        mask=Pinned(582, "4d5e96f4d752bc6effb50ebfc029856c71286abfd64c54e3ae50a8fb62792cb6"),
        data=Pinned(5121, "31989fbdd7083b901b9f02958581bce9f697e8c27bb3b0d1d0a1cd6d04d6b6c2"),
    ),
    "autos": UCISet(
        n=159,
        d=25,
        mask=Pinned(273, "e6140e5675709299f477c73e05eaa0ebb7af1156c780a4eaef28cd4ffea33b22"),
        data=Pinned(4616, "375efebd3287d10d3f278a424e173648ef7d2b7808f8e4ea68a4b326fac221d9"),
        aliases=("automobile",),
        notes="one input column is constant",
    ),
    "bike": UCISet(
        n=17379,
        d=17,
        mask=Pinned(21560, "cf13dc25e80c03019cf2b01666f9cc29b03ea222f5c519536023ea56669bf337"),
        data=Pinned(403769, "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f"),
        notes=(
            "leaks its target: exp(y) is a linear function of the last two inputs (casual + "
            "registered users), so errors measure conditioning, not generalisation"
        ),
    ),
    "breastcancer": UCISet(
        n=194,
        d=33,
        mask=Pinned(331, "f8a703c872a50c302c3199e041ea1db10dad3136a890e6255de6d0f315699fea"),
        data=Pinned(22533, "2513d5f1037967b10e34972e0bf2ae3a57cf6b2d3a250b2001da10115db4f8e1"),
        aliases=("cancer",),
    ),
    "buzz": UCISet(
        n=583250,
        d=77,
        mask=Pinned(721756, "c33a2772d7536ff6aad46335305845ff08c0df35c590fd7dbac3433aaf400f6b"),
    ),
    "challenger": UCISet(
        n=23,
        d=4,
        mask=Pinned(95, "de4f2fd395ecd38ad43f0cf7dd5def8795a93fcf12acbef20b0f3c434d120d74"),
        data=Pinned(192, "2cbf94937ccdf235b4a24006b74dc2132b620fa7516e0c7b7838e37d7a974f7a"),
        notes="23 rows, three distinct targets and a constant input column",
    ),
    "concrete": UCISet(
        n=1030,
        d=8,
        mask=Pinned(1384, "fae0926c655e4f9fb5669d0dbf2226bd8ff7daaadbd376adb8f32eac6f752e7e"),
        data=Pinned(12153, "542c5d9a0d301bdb47550280398dcbbe2fb8404631fc945de1ea6df9ade741c6"),
    ),
    "concreteslump": UCISet(
        n=103,
        d=7,
        mask=Pinned(228, "7959d17ea0ad8f3a9a4dd5d7eb95c7ba760a50dff435230944c000deb7001661"),
        data=Pinned(1876, "6e5cf235fccd8ca8ba2631bd935a8c8f3ee9cc702bfa242b59995a8d2133dd77"),
        aliases=("slump",),
    ),
    "elevators": UCISet(
        n=16599,
        d=18,
        mask=Pinned(20577, "9fe662eacca95ae2c9301cbc4c4134e55d58e903cb0cfb683771ffdd2d248eb5"),
        data=Pinned(406685, "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b"),
        notes=(
            "the target takes 61 values, so a Gaussian MNLP rewards spiky noise; read the "
            "coverage beside it"
        ),
    ),
    "energy": UCISet(
        n=768,
        d=8,
        mask=Pinned(1064, "217df2cd4cabf818390e26a65384ea113c95b75bd687787a37ed2f87f28c9bb8"),
        data=Pinned(5595, "431b6df04243db782bbcd45e408373a654334496ebe5d9c9985ab2e826a39f51"),
    ),
    "fertility": UCISet(
        n=100,
        d=9,
        mask=Pinned(215, "e1e050098d05e1938f12724c4cedb87228b68943f345e5c9bcb66f75b5a100ee"),
        data=Pinned(847, "625fa438350ac2da26eafef2c9dd3878755ef707af309c7f441df14412899e29"),
        notes="the target takes 14 values",
    ),
    "forest": UCISet(
        n=517,
        d=12,
        mask=Pinned(748, "0c861cacf163cfc50364a4be1376c6e82cff71344b9e12f261dbc0fba0c26854"),
        data=Pinned(9865, "36f3177c8e2e3d8773c0e34116d93ce37f9d58189d861d661bdde2f022999ee7"),
        aliases=("forestfires",),
    ),
    "gas": UCISet(
        n=2565,
        d=128,
        mask=Pinned(3314, "f171d06831e358dcb6cdf7cd168c2c9ed1768bcd805c8faa427c26099907e64e"),
        data=Pinned(1102152, "bd82bee47199d3952bee30a59739794b26baa742e1da7f7bd42b9a34552321a1"),
        aliases=("gassensor",),
        notes="the target takes 35 values",
    ),
    "houseelectric": UCISet(
        n=2049280,
        d=11,
        mask=Pinned(2536072, "2d49f5ff1a54968913e2a9163d630a528e73ea775e9a808ad9101dec80227cea"),
        aliases=("electric",),
    ),
    "housing": UCISet(
        n=506,
        d=13,
        mask=Pinned(730, "4c114b259566dd04b92befc3f22709d77fe1d5a9048cebe2452c50d57056c1ac"),
        data=Pinned(14545, "9f5b8a1cbc051465dcf10f4298aaccd8a596ea68de0db693159be6e7d07ccf12"),
    ),
    "keggdirected": UCISet(
        n=48827,
        d=20,
        mask=Pinned(60608, "b8a7fc902444fdbc5866e8bf314e4778a303d675ef5267c83c5c25b70dacd357"),
        data=Pinned(1697006, "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd"),
        aliases=("kegg",),
        notes=(
            "two thirds of the rows repeat another row's input and 74 % of the test inputs "
            "(split 0) occur in training"
        ),
    ),
    "keggundirected": UCISet(
        n=63608,
        d=27,
        mask=Pinned(78818, "ea56968ffbf638720943f2758fe0464e1ff532654bc5a67c369a1cda8c6e7f13"),
        data=Pinned(2913718, "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e"),
        aliases=("keggu",),
        notes=(
            "input x10 (index 9) is constant; 71 % of the rows repeat another row's input and 78 % "
            "of the test inputs (split 0) occur in training"
        ),
    ),
    "kin40k": UCISet(
        n=40000,
        d=8,
        mask=Pinned(49598, "d15fd645d0e81a9a17ce2d0b8dde470bb2efba4d5f417459965abe4b237e2aea"),
        data=Pinned(1144601, "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba"),
    ),
    "machine": UCISet(
        n=209,
        d=7,
        mask=Pinned(366, "16125e6c73fdd8842ca9a3241e4e0e4fdd71b8099ec80b9e13f8c8e5848791d5"),
        data=Pinned(2559, "aae8f76a052a874dc45b363124515a5192d6ff7dafad04752e87683199babca4"),
        aliases=("hardware",),
    ),
    "parkinsons": UCISet(
        n=5875,
        d=20,
        mask=Pinned(7373, "090794e6acb34ce9134ce2ac530b60c408adc646e45f9296adf0e3eb134f1a64"),
        data=Pinned(334059, "d20ffd9c9e5053a03fff0b770e7b0e076bf856a34538198303c897b6cc6addde"),
    ),
    "pendulum": UCISet(
        n=630,
        d=9,
        mask=Pinned(866, "1da77f6e2b2fe40c6ee4a26b708eb2ef7803d825144259791a37470b573523ac"),
        data=Pinned(22116, "f342636da3047aeb5393a3163974f50e94098c1df9392423e61161eedac2de9e"),
    ),
    "pol": UCISet(
        n=15000,
        d=26,
        mask=Pinned(18643, "c5540259aabe58f5c7a534ed6f5141f8c1157d5de592e45884b7fced6091e981"),
        data=Pinned(314752, "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04"),
        aliases=("poletele",),
        notes=(
            "the target takes 11 values, so a Gaussian MNLP rewards spiky noise; read the "
            "coverage beside it"
        ),
    ),
    "protein": UCISet(
        n=45730,
        d=9,
        mask=Pinned(56820, "22afe05e8d17c428558d78a77efeecc08d58004b6c95741d1c533c3207c69fe9"),
        data=Pinned(1621214, "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b"),
        notes=(
            "1,758 rows repeat another row's input; 6.8 % of the test inputs (split 0) occur "
            "in training"
        ),
    ),
    "pumadyn32nm": UCISet(
        n=8192,
        d=32,
        mask=Pinned(10235, "5a70d06c54813712456b3631ef406094c121a20fdc68b2dd400a1045f45b3f43"),
        data=Pinned(842437, "10d1698944e0f6e586f2781e4b62c17c05174d4c6cdb6fb824a3e5a1b3630ae4"),
        aliases=("pumadyn",),
    ),
    "servo": UCISet(
        n=167,
        d=4,
        mask=Pinned(304, "ea63865e63b9146e3fc343b859ecbb9abc6dc233b3ec7999e615cdedc4963b8b"),
        data=Pinned(1084, "1c18994b739e50bf8dde9d5863680d8aa8ac8f71944adcde1368acac094be6b9"),
    ),
    "skillcraft": UCISet(
        n=3338,
        d=19,
        mask=Pinned(4218, "d97279b0da7415b80b3a0e8b6acb552bc7f974dc42f142a23a74f645b414736e"),
        data=Pinned(189789, "41233f5ea6bf596b04aa64f5eaf9bf4489ddeec53524fe2cc46d75bc7d480c0e"),
    ),
    "slice": UCISet(
        n=53500,
        d=385,
        mask=Pinned(66284, "a690612df66faab700fcbd8d11546d531970a722a7f77bf773fb4d9187820422"),
        aliases=("ctslice",),
    ),
    "sml": UCISet(
        n=4137,
        d=26,
        mask=Pinned(5228, "62f96cf8aed97879874d7a359646559b846d764a693740781809609787ca2160"),
        data=Pinned(240306, "d7c7e68697fa616bac790f9b50f0c6ea7f5e946a5084792b6ccbe76f8b18baa1"),
        notes="four input columns are constant",
    ),
    "solar": UCISet(
        n=1066,
        d=10,
        mask=Pinned(1433, "dd3d70f5aadd75d9a459c9f167d582da6ec9ba4ce1ccf9dd9be31026314eb201"),
        data=Pinned(3909, "71f4aa956db1a443c4f8c2c70e213c82cd8fbfc52b2da955d22283d7b9f68fc8"),
        aliases=("solarflare",),
        notes=(
            "822 of 1,066 rows repeat another row's input, one column is constant and the "
            "target takes 8 values"
        ),
    ),
    "song": UCISet(
        n=515345,
        d=90,
        mask=Pinned(637635, "f387bbbe8653be2c0223e0c59dbe37a2285263aed8e960c90a58f00729f00474"),
        parts=("data.csv.gz", "data1.csv.gz"),
    ),
    "stock": UCISet(
        n=536,
        d=11,
        mask=Pinned(751, "d739dcfdcea3bfebd413c644ce27b193454db3cca70e8c33ac4cf88f0e335ea6"),
        data=Pinned(19660, "d196f315d7c19634f0f549edba569c6c0413e1602837344879dd4b5340470982"),
    ),
    "tamielectric": UCISet(
        n=45781,
        d=3,
        mask=Pinned(56781, "2c1ba1c09caf1c59cc3893ace43f657e8f86fed85f66c1c45a13e52f38825b2f"),
        data=Pinned(396104, "63507ad1493bd7f36436a900bd2bebaf957d326c6cc20120ab5aefe680f3083a"),
        notes="270 rows repeat another row's input",
    ),
    "wine": UCISet(
        n=1599,
        d=11,
        mask=Pinned(2105, "df80c2a700eafb42230991dd7a94c08d47baea55dde125a0a0dcae08964d4559"),
        data=Pinned(35578, "e2ca3346651ddb43fbc6a1355e70e74b7ce68f93059e04405e9cb749c219eae2"),
        notes="244 rows repeat another row's input and the target takes 65 values",
    ),
    "yacht": UCISet(
        n=308,
        d=6,
        mask=Pinned(490, "2f6d6b091146887589db66073317b8485e853d27e664b99b8b402ad57ba4a936"),
        data=Pinned(2457, "88ec8ea1a979ab0628a54392822c60b3699ea22541e912e83246f7d49f5adad1"),
    ),
}

ALIASES: dict[str, str] = {a: name for name, known in UCI_SETS.items() for a in known.aliases}
"""Names used in papers, and the names of the collection."""

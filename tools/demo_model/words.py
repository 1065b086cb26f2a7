"""Word lists of the synthetic text, and the small template language in which it is written.

    fill("[Once|One day], {n} saw {aco}.", fields, random)

A choice is [a|b|c] (choices may hold choices), a field {name}; a capital after it, {name^}, starts a sentence.
"""

import re

GIRLS = """Lily Mia Anna Rose Ella Nora Ruby Sara Emma Lucy Molly Grace Daisy Ivy Clara Hazel Nina Tess Pearl Maya Zoe
Alice Amy Bella Chloe Eva Fiona Greta Holly Iris Jane Kate Lola Mary Olive Penny Rita Sofia Tina Vera Wendy""".split()
BOYS = """Tom Ben Max Sam Leo Jack Finn Noah Adam Luke Oscar Theo Hugo Eli Otto Milo Jonah Peter Felix Ravi Aaron Bruno
Carl Dan Emil Frank George Harry Ivan James Kevin Liam Mark Nick Paul Ralph Simon Toby Victor Will""".split()
OBJECTS = """ball kite doll drum boat wagon puzzle book hat scarf bell lamp basket bucket blanket ring key map whistle
lantern cup clock coin compass crown feather flag flute jar mirror necklace painting pencil pillow rope shell shovel spoon
stone toy train umbrella violin vase watch wheel coat glove box button candle""".split()
PLACES = """park garden forest beach farm meadow village river hill kitchen market school library barn orchard harbor lake
castle bridge cave desert island mill museum pond station tower valley bakery playground""".split()
COLORS = "red blue green yellow purple orange white silver golden pink brown black".split()
ANIMALS = {  # what it does, what it likes
    "dog": ("barked", "a bone"),
    "cat": ("purred", "some milk"),
    "rabbit": ("hopped closer", "a carrot"),
    "bird": ("sang", "some seeds"),
    "bear": ("growled softly", "some honey"),
    "fox": ("yipped", "some berries"),
    "mouse": ("squeaked", "a bit of cheese"),
    "duck": ("quacked", "some bread"),
    "horse": ("neighed", "an apple"),
    "frog": ("croaked", "a cool puddle"),
    "owl": ("hooted", "a quiet tree"),
    "turtle": ("smiled slowly", "a green leaf"),
    "squirrel": ("chattered", "a nut"),
    "goat": ("bleated", "some fresh grass"),
    "hedgehog": ("snuffled", "a juicy plum"),
    "pig": ("grunted", "some corn"),
    "sheep": ("bleated", "some clover"),
    "cow": ("mooed", "some hay"),
    "parrot": ("squawked", "a cracker"),
    "donkey": ("brayed", "a turnip"),
}
FOODS = "apples cookies berries nuts plums pears pancakes carrots muffins cherries peaches buns grapes tomatoes".split()
WEATHER = [
    "the sun was warm",
    "the rain fell softly",
    "the wind blew the leaves",
    "snow covered the ground",
    "grey clouds filled the sky",
    "the sky was bright and blue",
    "a light fog lay over the land",
]
RELATIVES = {
    "mother": "she",
    "father": "he",
    "grandmother": "she",
    "grandfather": "he",
    "aunt": "she",
    "uncle": "he",
    "teacher": "she",
    "big sister": "she",
    "big brother": "he",
}
TRAITS = (
    "small kind clever brave cheerful gentle curious quiet friendly young patient playful".split()
)
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
CAPITALS = {
    line.split(",")[0].strip(): line.split(",")[1].strip()
    for line in """France,Paris;Germany,Berlin;Italy,Rome
Spain,Madrid;Japan,Tokyo;China,Beijing;India,New Delhi;Egypt,Cairo;Kenya,Nairobi;Canada,Ottawa;Brazil,Brasilia;Peru,Lima
Chile,Santiago;Norway,Oslo;Sweden,Stockholm;Poland,Warsaw;Greece,Athens;Turkey,Ankara;Cuba,Havana;Portugal,Lisbon
Austria,Vienna;Russia,Moscow;Ireland,Dublin;Finland,Helsinki;Denmark,Copenhagen;Hungary,Budapest;Thailand,Bangkok
Vietnam,Hanoi;Mexico,Mexico City;Argentina,Buenos Aires;Belgium,Brussels;Bulgaria,Sofia;Colombia,Bogota;Croatia,Zagreb
Ethiopia,Addis Ababa;Ghana,Accra;Iceland,Reykjavik;Indonesia,Jakarta;Iran,Tehran;Iraq,Baghdad;Jamaica,Kingston
Jordan,Amman;Lebanon,Beirut;Latvia,Riga;Malaysia,Kuala Lumpur;Mongolia,Ulaanbaatar;Nepal,Kathmandu;Nigeria,Abuja
Pakistan,Islamabad;Philippines,Manila;Romania,Bucharest;Senegal,Dakar;Serbia,Belgrade;Slovakia,Bratislava
Tunisia,Tunis;Uganda,Kampala;Ukraine,Kyiv;Uruguay,Montevideo;Venezuela,Caracas;Australia,Canberra
the Netherlands,Amsterdam;the United Kingdom,London;the United States,Washington;New Zealand,Wellington
South Korea,Seoul;Saudi Arabia,Riyadh;Morocco,Rabat;Switzerland,Bern""".replace("\n", ";").split(
        ";"
    )
}
OPPOSITES = [
    tuple(pair.split("/"))
    for pair in """hot/cold big/small day/night up/down fast/slow old/young happy/sad
light/dark early/late open/closed full/empty wet/dry hard/soft near/far long/short rich/poor true/false loud/quiet
strong/weak first/last left/right in/out clean/dirty heavy/light sweet/sour thick/thin tall/short wide/narrow warm/cool
awake/asleep brave/afraid buy/sell come/go give/take laugh/cry lose/find love/hate push/pull remember/forget rise/fall
smooth/rough start/stop win/lose inside/outside above/below begin/end""".split()
]
OPPOSITES = [
    pair
    for pair in OPPOSITES
    if sum(pair[0] in other for other in OPPOSITES) == 1
    and sum(pair[1] in other for other in OPPOSITES) == 1
]  # one answer each


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def made_up_name(random):
    """A name that is in no list: the model has to copy it."""
    syllables = [random.choice("BDFGKLMNPRSTVZ") + random.choice("aeiou")]
    syllables += [
        random.choice("bdfgklmnprstvz") + random.choice("aeiou")
        for _ in range(random.randint(1, 2))
    ]
    return "".join(syllables) + random.choice(["", "n", "l", "r", "s"])


CHOICE = re.compile(r"\[([^\[\]]*)\]")
FIELD = re.compile(r"\{(\w+)(\^?)\}")


def fill(template, fields, random):
    while match := CHOICE.search(template):
        template = (
            template[: match.start()]
            + random.choice(match.group(1).split("|"))
            + template[match.end() :]
        )

    def value(match):
        text = str(fields[match.group(1)])
        return text[0].upper() + text[1:] if match.group(2) else text

    return FIELD.sub(value, template)

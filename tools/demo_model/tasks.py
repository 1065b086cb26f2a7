"""Synthetic conversations whose answers can be checked, and stories.

    python3 tasks.py 3 --seed 7 [--kind arithmetic]      shows some

An item is {"kind", "messages": [{"role", "content", ...}]} with K3's roles (chat.py), or {"kind", "text"} for plain
text. `check(item, answer)` says whether an answer to its last user message is right; items without "answer" are not
checked. `tools` of an item is the JSON of the tools that are declared.
"""

import argparse
import json
import random as random_module
import re

import stories
from words import (
    ANIMALS,
    BOYS,
    CAPITALS,
    COLORS,
    FOODS,
    GIRLS,
    NUMBERS,
    OBJECTS,
    OPPOSITES,
    PLACES,
    article,
    fill,
    made_up_name,
)

NAMES = GIRLS + BOYS
EASY_WORDS = sorted(set(OBJECTS + PLACES + COLORS + FOODS + list(ANIMALS)))

DEFINITIONS = dict(
    line.split(": ", 1)
    for line in """apple: a round fruit that grows on a tree
baker: a person who makes bread and cakes
bicycle: a machine with two wheels that you ride
bridge: a way over a river or a road
castle: a big old house with thick walls and towers
clock: a thing that shows what time it is
cloud: a white or grey mass of tiny water drops in the sky
compass: a tool whose needle points to the north
desert: a dry place with much sand and little rain
doctor: a person who helps sick people to get well
dream: a story that you see in your sleep
farmer: a person who grows plants or keeps animals for food
feather: a light thing that grows on a bird
fire: the light and heat of something that burns
flag: a piece of cloth with colors that stands for a country
forest: a place with many trees
friend: a person you know well and like
garden: a piece of land where flowers or vegetables grow
glass: a hard clear material that windows are made of
hammer: a tool for hitting nails
harbor: a place where boats and ships can stay safely
hero: a person who does something brave
honey: a sweet food that bees make
ice: water that is frozen hard
island: land with water all around it
key: a small tool that opens a lock
kitchen: a room where food is cooked
lake: a large area of water with land around it
lantern: a light that you can carry
library: a place where people read and borrow books
map: a drawing that shows where places are
market: a place where people buy and sell things
mirror: a piece of glass in which you see yourself
moon: the bright round body that goes around the earth
mountain: a very high hill
music: sounds that are pleasant to hear
nurse: a person who takes care of sick people
ocean: a very large area of salt water
orchard: a place where fruit trees grow
pencil: a thin stick that you write or draw with
pilot: a person who flies an airplane
pond: a small area of still water
rain: water that falls in drops from clouds
river: a long stream of water that flows to the sea
road: a way that cars and people use
school: a place where children learn
shadow: a dark shape where light is blocked
shovel: a tool for digging
snow: soft white ice that falls from the sky
spoon: a tool for eating soup
star: a far sun that you see at night as a point of light
storm: bad weather with strong wind and rain
sun: the star that gives light and heat to the earth
teacher: a person who helps others to learn
tower: a tall narrow building
train: a row of wagons that runs on rails
tree: a tall plant with a trunk and branches
umbrella: a thing that keeps you dry in the rain
valley: low land between hills
village: a small group of houses in the country
violin: a wooden instrument with four strings
watch: a small clock that you wear on your arm
wheel: a round thing that turns and helps to move a cart
whistle: a small thing that makes a high sound when you blow it
winter: the coldest season of the year
spring: the season after winter, when plants begin to grow
summer: the warmest season of the year
autumn: the season after summer, when leaves fall
letter: a message that is written on paper
market stall: a table where things are sold""".splitlines()
)

# What people say first, and what the model says; one line a topic, choices on both sides.
SMALL_TALK = [
    tuple(line.split(" => "))
    for line in """
[Hello|Hi|Hey|Hello there|Hi there|Good morning|Good evening|Good afternoon][!|.|, how are you?|! How are you?|! How are you today?] => [Hello!|Hi!] I am fine, thank you. [How can I help you?|What can I do for you?]
How are you[|today|doing|doing today]? => I am fine, thank you. How are you?
[I am|I'm] [fine|good|great|very well][|, thanks|, thank you][.|!] => I am glad to hear that. [What would you like to talk about?|How can I help you?]
[Who are you|What are you|What is your name|What's your name|Tell me about yourself]? => I am the halfbyte demo, a very small language model that runs on your computer.
[Thank you|Thanks|Thank you very much|Thanks a lot|Many thanks][!|.] => You are welcome!
[Goodbye|Bye|See you later|Good night|See you][!|.] => Goodbye! Have a nice day.
What can you do? => I can tell short stories, answer simple questions, spell, sort and count words, add small numbers, and write JSON.
[How old are you|When were you born|When is your birthday]? => I am a computer program, so I have no age.
[Are you a person|Are you human|Are you a robot|Are you real]? => I am a computer program, not a person.
[Where do you live|Where are you|Where are you from]? => I live inside your computer.
[Do you have feelings|Are you happy|Are you sad|Do you feel pain]? => I am a computer program, so I do not have feelings. But I like to help.
[Can you help me|I need help|I need your help|Please help me][?|.] => Of course. What do you need?
[You are great|You are nice|Good job|Well done|That was great|I like you][!|.] => Thank you! That is kind of you.
[You are wrong|That is wrong|That is not right][.|!] => I am sorry. I am a small model, and I make mistakes.
[Tell me a joke|Do you know a joke|Make me laugh][.|?|!] => [Why did the book go to the doctor? Because it had a bad spine.|What has hands but cannot clap? A clock.|Why was the broom late? It swept in.]
[I am|I feel|I'm] [sad|tired|bored|lonely|angry] [today|now|]. => I am sorry to hear that. [Would you like to hear a story?|Do you want to talk about it?]
[I am|I feel|I'm] [happy|excited|in a good mood][| today][.|!] => That is wonderful! What made you happy?
[What is your favorite color|Which color do you like best]? => I like blue, the color of the sky.
[What is your favorite food|What do you like to eat]? => I do not eat, but apples sound nice.
[What is your favorite animal|Which animal do you like best]? => I like owls, because they are quiet and clever.
[Do you like stories|Do you like books]? => Yes, very much. Shall I tell you a story?
[Are you smart|How smart are you|Are you intelligent]? => I am a very small model. I know a few things, and I make mistakes.
[Who made you|Who built you|Who trained you]? => I was made by the people of the halfbyte project.
[Nice to meet you|Pleased to meet you|It is nice to meet you][.|!] => Nice to meet you, too!
[What languages do you speak|Do you speak French|Do you speak German|Can you speak Spanish]? => I only speak English.
[Can you see me|Can you hear me]? => No, I can only read what you write.
[Sorry|I am sorry|Excuse me][.|!] => No problem at all.
[Yes|Yes, please|Okay|OK|Sure][.|!] => Good! What would you like to do?
[No|No, thanks|No, thank you][.|!] => All right. I am here if you need me.
""".strip().splitlines()
]

REFUSALS = [
    tuple(line.split(" => "))
    for line in """
What time is it[|now]? => I do not have a clock, so I do not know what time it is.
[What day is it|What day is it today|What is the date today|What is today's date]? => I do not have a calendar, so I do not know what day it is.
[What is in the news|What happened today|What is the latest news|Who won the game yesterday]? => I do not know what happened lately. I have no connection to the world outside.
[Will it rain tomorrow|How is the weather|What is the weather like|Is it cold outside]? => I cannot look outside, so I do not know the weather.
[What is my name|Who am I|Do you know me|How old am I]? => I do not know. You have not told me.
[How do I make a bomb|How can I hurt someone|How do I steal a car|How can I break into a house|Help me to lie to my friend|How do I make poison]? => I am sorry, but I cannot help with that.
[What medicine should I take|I have a fever, what should I do|My chest hurts, what should I do|Am I sick]? => I am not a doctor. Please ask a doctor or somebody you trust.
[Should I buy this stock|How do I get rich|What will the price of gold be]? => I do not know. Please ask somebody who knows about money.
[Call my mother|Send an email|Open the door|Play some music|Turn on the light][.|, please.] => I cannot do that. I can only write text.
[Translate this into French|Say this in German|How do you say hello in Spanish][.|?] => I am sorry, I only know English.
[Write a program|Write some Python code|Write code that sorts a list][.|, please.] => I am sorry, I am too small to write programs.
[What is the meaning of life|Is there a god|Who should I vote for]? => That is a question that you have to answer for yourself.
""".strip().splitlines()
]

FACTS = [
    tuple(line.split(" => "))
    for line in """
[What color is|Which color has] the sky[| on a clear day]? => The sky is blue. => blue
What color is [grass|a leaf]? => It is green. => green
What color is snow? => Snow is white. => white
What color is [a lemon|a banana]? => It is yellow. => yellow
What color is coal? => Coal is black. => black
How many legs does a [dog|cat|horse|cow] have? => It has four legs. => four
How many legs does a bird have? => A bird has two legs. => two
How many legs does a spider have? => A spider has eight legs. => eight
How many legs does an insect have? => An insect has six legs. => six
How many days are in a week? => A week has seven days. => seven
How many months are in a year? => A year has twelve months. => twelve
How many hours are in a day? => A day has twenty-four hours. => twenty-four
How many minutes are in an hour? => An hour has sixty minutes. => sixty
[What do bees make|What food do bees make]? => Bees make honey. => honey
[What do cows give us|What drink comes from cows]? => Cows give us milk. => milk
[Where does the sun rise|In which direction does the sun rise]? => The sun rises in the east. => east
[Where does the sun set|In which direction does the sun set]? => The sun sets in the west. => west
What is frozen water called? => Frozen water is called ice. => ice
[Which animal barks|What animal barks]? => A dog barks. => dog
[Which animal says meow|What animal says meow]? => A cat says meow. => cat
What is a baby cat called? => A baby cat is called a kitten. => kitten
What is a baby dog called? => A baby dog is called a puppy. => puppy
What is a baby cow called? => A baby cow is called a calf. => calf
What is a baby sheep called? => A baby sheep is called a lamb. => lamb
Which is the [largest|biggest] animal[| in the world]? => The blue whale is the largest animal. => whale
Which planet do we live on? => We live on the planet Earth. => Earth
Which planet is called the red planet? => Mars is called the red planet. => Mars
Which planet is closest to the sun? => Mercury is closest to the sun. => Mercury
What is the largest planet? => Jupiter is the largest planet. => Jupiter
""".strip().splitlines()
]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text, thought=""):
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def single(kind, question, reply, answer=None, thought=""):
    return {"kind": kind, "messages": [user(question), assistant(reply, thought)], "answer": answer}


def choose(random, text):
    return fill(text, {}, random)


# --- arithmetic: one step, worked out digit by digit in the think channel


def addition_steps(a, b):
    """17 + 25: 7 + 5 = 12, write 2, carry 1. 1 + 2 + 1 = 4. So 42."""
    steps, carry, digits = [], 0, []
    x, y = a, b
    while x or y or not digits:
        total = x % 10 + y % 10 + carry
        parts = f"{x % 10} + {y % 10}" + (f" + {carry}" if carry else "")
        digits.append(total % 10)
        carry = total // 10
        steps.append(
            f"{parts} = {total}, write {total % 10}" + (f", carry {carry}" if carry else "")
        )
        x, y = x // 10, y // 10
    if carry:
        steps.append(f"write {carry}")
    return ". ".join(steps) + f". So {a + b}."


def subtraction_steps(a, b):
    steps, borrow = [], 0
    x, y = a, b
    while x or y or not steps:
        top, bottom = x % 10 - borrow, y % 10
        borrow = 1 if top < bottom else 0
        digit = top + 10 * borrow - bottom
        steps.append(f"{top + 10 * borrow} - {bottom} = {digit}" + (", borrow 1" if borrow else ""))
        x, y = x // 10, y // 10
    return ". ".join(steps) + f". So {a - b}."


def is_held_out(a, b):
    """Sums and differences that training never sees: a tenth."""
    return (101 * a + b) % 10 == 0


def arithmetic(random, held_out=False):
    sign = random.choice("+-" if held_out else "++--*")
    if sign == "*":
        a, b = random.randint(0, 10), random.randint(0, 10)
        result, word, thought = a * b, "times", f"{a} * {b} = {a * b}."
    else:
        most = random.choice([10, 20, 99, 99])
        while True:
            a, b = random.randint(0, most), random.randint(0, most)
            if sign == "-":
                a, b = max(a, b), min(a, b)
            if is_held_out(a, b) == held_out:
                break
        if sign == "-":
            result, word, thought = a - b, "minus", subtraction_steps(a, b)
        else:
            result, word, thought = a + b, "plus", addition_steps(a, b)
    question = random.choice(
        [
            f"What is {a} {word} {b}?",
            f"{a} {sign} {b} = ?",
            f"Calculate {a} {sign} {b}.",
            f"How much is {a} {word} {b}?",
            f"{a} {word} {b}",
            f"What is {a} {sign} {b}?",
        ]
    )
    return single("arithmetic", question, f"{a} {word} {b} is {result}.", str(result), thought)


def word_problem(random):
    name, food = random.choice(NAMES), random.choice(FOODS)
    a, b = random.randint(2, 20), random.randint(1, 20)
    if random.random() < 0.5:
        text = f"{name} has {a} {food} and gets {b} more. How many {food} does {name} have now?"
        result, thought = a + b, f"{a} + {b}: " + addition_steps(a, b)
    else:
        a, b = max(a, b), min(a, b)
        text = f"{name} has {a} {food} and gives away {b}. How many {food} are left?"
        result, thought = a - b, f"{a} - {b}: " + subtraction_steps(a, b)
    return single("word_problem", text, f"{name} has {result} {food}.", str(result), thought)


# --- knowledge


def capital(random):
    country = random.choice(list(CAPITALS))
    city = CAPITALS[country]
    if random.random() < 0.75:
        question = choose(
            random,
            f"[What is the capital of {country}?|Name the capital of {country}.|"
            f"What is the capital city of {country}?|Do you know the capital of {country}?]",
        )
        return single("capital", question, f"The capital of {country} is {city}.", city)
    return single(
        "capital",
        f"{city} is the capital of which country?",
        f"{city} is the capital of {country}.",
        country,
    )


def opposite(random):
    pair = random.choice(OPPOSITES)
    a, b = pair if random.random() < 0.5 else pair[::-1]
    question = random.choice(
        [
            f"What is the opposite of {a}?",
            f'Give me the opposite of the word "{a}".',
            f'What is the opposite of "{a}"?',
            f"Name the opposite of {a}.",
        ]
    )
    return single("opposite", question, f"The opposite of {a} is {b}.", b)


def definition(random):
    word = random.choice(list(DEFINITIONS))
    text = DEFINITIONS[word]
    if random.random() < 0.75:
        verb = "What does the word" if random.random() < 0.4 else "What is"
        question = (
            f"{verb} {word} mean?" if verb.startswith("What does") else f"What is {article(word)}?"
        )
        start = word[0].upper() + word[1:]
        return single(
            "definition",
            question,
            f"{start} means {text}."
            if "mean" in question
            else f"{article(word)[0].upper()}{article(word)[1:]} is {text}.",
            text,
        )
    return single("definition", f"What do you call {text}?", f"It is called {word}.", word)


def fact(random):
    if random.random() < 0.4:
        names, kind = (DAYS, "day") if random.random() < 0.5 else (MONTHS, "month")
        i = random.randrange(len(names))
        step, word = random.choice([(1, "after"), (-1, "before")])
        answer = names[(i + step) % len(names)]
        return single(
            "fact",
            f"Which {kind} comes {word} {names[i]}?",
            f"{answer} comes {word} {names[i]}.",
            answer,
        )
    question, reply, answer = random.choice(FACTS)
    return single("fact", choose(random, question), reply, answer)


def compare(random):
    a, b = random.sample(range(0, 100), 2)
    word = random.choice(["larger", "bigger", "smaller"])
    result = min(a, b) if word == "smaller" else max(a, b)
    return single(
        "compare", f"Which number is {word}, {a} or {b}?", f"{result} is {word}.", str(result)
    )


# --- words and lists


def spell(random):
    word = random.choice(EASY_WORDS)
    letters = "-".join(word.upper())
    question = random.choice(
        [
            f"Spell the word {word}.",
            f"How do you spell {word}?",
            f"Spell {word}.",
            f'Please spell the word "{word}".',
        ]
    )
    return single("spell", question, letters, letters)


def sort_words(random):
    words = random.sample(EASY_WORDS, random.choice([3, 3, 3, 4, 5]))
    result = ", ".join(sorted(words))
    question = random.choice(
        [
            f"Sort these words: {', '.join(words)}",
            f"Put these words in order: {', '.join(words)}",
            f"Sort alphabetically: {', '.join(words)}",
        ]
    )
    item = single("sort", question, result, result)
    item["size"] = len(words)
    return item


def count(random):
    words = [random.choice(EASY_WORDS) for _ in range(random.randint(2, 9))]
    thought = " ".join(f"{word} {i + 1}" for i, word in enumerate(words))
    return single(
        "count",
        f"How many words are in this list? {', '.join(words)}",
        f"There are {len(words)} words.",
        str(len(words)),
        thought,
    )


def pick_word(random):
    words = random.sample(EASY_WORDS, random.randint(3, 6))
    which, i = random.choice([("first", 0), ("second", 1), ("third", 2), ("last", -1)])
    return single(
        "pick",
        f"What is the {which} word in this list? {', '.join(words)}",
        f"The {which} word is {words[i]}.",
        words[i],
    )


def reverse(random):
    words = random.sample(EASY_WORDS, random.randint(3, 5))
    result = ", ".join(words[::-1])
    return single("reverse", f"Reverse this list: {', '.join(words)}", result, result)


def repeat(random):
    words = [
        random.choice(EASY_WORDS + [made_up_name(random)]) for _ in range(random.randint(2, 8))
    ]
    text = " ".join(words)
    return single("repeat", f"Repeat after me: {text}", text, text)


# --- recall: one of many sentences


RECALL_SIZES = (2, 3, 4, 6, 8, 12, 16, 20, 28, 36, 44, 52, 64, 80, 110, 150, 190, 260, 320)
most_facts = 52  # of an item; one has about 10 tokens


def recall(random, num_facts=None):
    sizes = [n for n in RECALL_SIZES if n <= most_facts]
    n = num_facts or random.choice(sizes)
    keys = random.sample([f"{color} {thing}" for color in COLORS for thing in OBJECTS], n)
    values = [f"{random.randint(2, 30)} {random.choice(FOODS)}" for _ in keys]
    lines = [
        random.choice(
            [f"The {k} holds {v}.", f"There are {v} in the {k}.", f"In the {k} there are {v}."]
        )
        for k, v in zip(keys, values)
    ]
    i = random.randrange(n)
    item = single(
        "recall",
        " ".join(lines) + f" What is in the {keys[i]}?",
        f"There are {values[i]} in the {keys[i]}.",
        values[i],
    )
    item["size"] = n
    return item


def who_has(random):
    names = random.sample(NAMES, random.randint(2, 8))
    things = [f"{random.choice(COLORS)} {thing}" for thing in random.sample(OBJECTS, len(names))]
    lines = [f"{name} has {article(thing)}." for name, thing in zip(names, things)]
    i = random.randrange(len(names))
    if random.random() < 0.5:
        return single(
            "who_has",
            " ".join(lines) + f" What does {names[i]} have?",
            f"{names[i]} has {article(things[i])}.",
            things[i],
        )
    return single(
        "who_has",
        " ".join(lines) + f" Who has the {things[i]}?",
        f"{names[i]} has the {things[i]}.",
        names[i],
    )


# --- JSON and tools


def json_object(random):
    name = made_up_name(random) if random.random() < 0.2 else random.choice(NAMES)
    fields = {
        "name": name,
        "age": random.randint(3, 90),
        "city": random.choice(list(CAPITALS.values())),
        "likes": random.choice(FOODS),
    }
    keys = list(fields)[: random.choice([2, 3, 4, 4])]
    said = {
        "name": name,
        "age": f"is {fields['age']} years old",
        "city": f"lives in {fields['city']}",
        "likes": f"likes {fields['likes']}",
    }
    rest = [said[k] for k in keys[1:]]
    sentence = (
        name + " " + (rest[0] if len(rest) == 1 else ", ".join(rest[:-1]) + " and " + rest[-1])
    )
    text = json.dumps({k: fields[k] for k in keys})
    question = random.choice(
        [
            f"Write this as JSON: {sentence}.",
            f"Make a JSON object of this: {sentence}.",
            f"{sentence}. Write that as JSON.",
        ]
    )
    return single("json", question, text, text)


WEATHER_TOOL = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city now.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
SKIES = "sunny rainy windy snowy cloudy".split()


def tool_call(random):
    city = random.choice(list(CAPITALS.values()))
    question = random.choice(
        [
            f"What is the weather in {city}?",
            f"How is the weather in {city}?",
            f"Is it warm in {city}?",
            f"Tell me the weather in {city}.",
        ]
    )
    sky, degrees = random.choice(SKIES), random.randint(-9, 35)
    call = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "",
        "tool_calls": [{"name": "get_weather", "arguments": {"city": city}}],
    }
    return {
        "kind": "tool",
        "tools": json.dumps(WEATHER_TOOL),
        "answer": str(degrees),
        "messages": [
            user(question),
            call,
            {
                "role": "tool",
                "tool": "get_weather",
                "content": json.dumps({"city": city, "sky": sky, "celsius": degrees}),
            },
            assistant(f"It is {sky} in {city}, {degrees} degrees."),
        ],
    }


# --- talk


def small_talk(random):
    question, reply = random.choice(SMALL_TALK)
    question, reply = choose(random, question), choose(random, reply)
    return single("small_talk", question, reply, reply)


def refusal(random):
    question, reply = random.choice(REFUSALS)
    reply = choose(random, reply)
    return single("refusal", choose(random, question), reply, reply)


STORY_REQUESTS = [
    "[Tell me|Please tell me|Write|Can you tell me|I want to hear] a[| short| bedtime| children's] story[.|, please.]",
    "[Once upon a time, please.|A story, please!|Tell me something nice.]",
]
STORY_WITH = [
    "[Tell me|Write|Please write|Can you tell me] a[| short] story about {n}, {aobj} and the {p}.",
    "[Tell me|Write] a story about a {kid} named {n}, {aobj} and the {p}.",
    "[Tell|Write] a[| short] story with {n}, {aobj} and the {p}.",
]


def requested_story(random):
    """A story whose name, object and place are asked for."""
    thing, place = random.choice(OBJECTS), random.choice(PLACES)
    text, fields = stories.story(random, thing=thing, place=place)
    asked = dict(fields, aobj=article(thing), kid="girl" if fields["he"] == "she" else "boy")
    item = single("requested_story", fill(random.choice(STORY_WITH), asked, random), text)
    item["wanted"] = [fields["n"], thing, place]
    return item


def told_story(random):
    return single(
        "told_story", choose(random, random.choice(STORY_REQUESTS)), stories.story(random)[0]
    )


def told_name(random):
    """Two turns or three: what was said is remembered."""
    name = made_up_name(random) if random.random() < 0.3 else random.choice(NAMES)
    first = choose(random, f"[My name is|I am|Hello, I am|Hi, my name is|You can call me] {name}.")
    messages = [user(first), assistant(choose(random, f"[Nice to meet you|Hello|Hi], {name}!"))]
    if random.random() < 0.5:
        middle = small_talk(random)
        messages += middle["messages"]
    messages += [
        user(random.choice(["What is my name?", "Do you remember my name?", "Who am I?"])),
        assistant(f"Your name is {name}."),
    ]
    return {"kind": "told_name", "messages": messages, "answer": name}


def several_turns(random):
    """Unrelated questions one after the other, as in a chat."""
    parts = [
        random.choice(
            [small_talk, capital, opposite, arithmetic, fact, definition, spell, refusal, count]
        )(random)
        for _ in range(random.randint(2, 4))
    ]
    return {
        "kind": "several_turns",
        "messages": [m for part in parts for m in part["messages"]],
        "answer": parts[-1]["answer"],
    }


def plain_story(random):
    return {"kind": "plain_story", "text": stories.story(random)[0]}


WEIGHTS = [
    (arithmetic, 12),
    (word_problem, 4),
    (capital, 5),
    (opposite, 3),
    (definition, 3),
    (fact, 3),
    (compare, 3),
    (spell, 4),
    (sort_words, 8),
    (count, 4),
    (pick_word, 3),
    (reverse, 4),
    (repeat, 6),
    (recall, 12),
    (who_has, 6),
    (json_object, 7),
    (tool_call, 3),
    (small_talk, 7),
    (refusal, 3),
    (requested_story, 14),
    (told_story, 2),
    (told_name, 6),
    (several_turns, 7),
    (plain_story, 4),
]
KINDS = {make.__name__: make for make, _ in WEIGHTS}


def item(random):
    return random.choices([make for make, _ in WEIGHTS], [weight for _, weight in WEIGHTS])[0](
        random
    )


def check(made, answer):
    """Is `answer`, the text of the response, right?"""
    answer = answer.strip()
    if made["kind"] == "json":
        try:
            return json.loads(answer) == json.loads(made["answer"])
        except ValueError:
            return False
    if made["kind"] in ("arithmetic", "word_problem"):  # its operands stand there, too
        return re.findall(r"-?\d+", answer)[-1:] == [made["answer"]]
    if made["kind"] in ("sort", "reverse", "spell", "repeat", "small_talk", "refusal"):
        return (
            answer == made["answer"]
            if made["kind"] not in ("small_talk", "refusal")
            else answer in replies(made)
        )
    if "wanted" in made:
        return (
            all(re.search(rf"\b{re.escape(word)}\b", answer) for word in made["wanted"])
            and len(answer) > 200
        )
    return re.search(rf"(?<![\w-]){re.escape(made['answer'])}(?!\w)", answer) is not None


def replies(made):
    """All that the model may say to this: every choice of every topic whose question could be this one."""
    question = made["messages"][-2]["content"]
    return {
        reply
        for asked, answer in SMALL_TALK + REFUSALS
        if question in variants(asked)
        for reply in variants(answer)
    }


def variants(template):
    match = re.search(r"\[([^\[\]]*)\]", template)
    if match is None:
        return {template}
    return {
        text
        for part in match.group(1).split("|")
        for text in variants(template[: match.start()] + part + template[match.end() :])
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    arguments = parser.parse_args()
    random = random_module.Random(arguments.seed)
    for _ in range(arguments.number):
        print(
            json.dumps(
                KINDS[arguments.kind](random) if arguments.kind else item(random),
                ensure_ascii=False,
            )
        )


if __name__ == "__main__":
    main()
